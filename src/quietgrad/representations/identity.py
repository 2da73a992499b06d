"""The gradient as it is: DP-SGD's representation."""

from __future__ import annotations

from dataclasses import dataclass

from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.stages import PerSampleGrads, Released
from quietgrad.representations.base import Codec, Representation, State
from quietgrad.representations.public import Public


class IdentityCodec(Codec):
    def __init__(self, public: Public) -> None:
        self.space = public.space

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        return grads

    def decode(self, released: Released) -> Blocks:
        return released.blocks


@dataclass(frozen=True)
class Identity(Representation):
    """encode(g) = g."""

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        return IdentityCodec(public), state

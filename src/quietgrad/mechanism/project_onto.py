"""Projections of a gradient that is already public: PDP-SGD's post-processing."""

from __future__ import annotations

from dataclasses import dataclass

from quietgrad.gradients.blocks import Blocks
from quietgrad.mechanism.post import Post
from quietgrad.representations.base import State
from quietgrad.representations.public import Public
from quietgrad.representations.subspace.subspace import Subspace, SubspaceCodec


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectOnto(Post):
    """g̃ ← s·VVᵀg̃ + (1 − s)·g̃: the release inside a public subspace, with 1 − s of what lies outside.

    Args:
        subspace: chooses V from public gradients, or at random.
        start_step: leave the release as it is before this step.
        strength: s in [0, 1]; 1 is the projection, 0 leaves everything.
    """

    subspace: Subspace
    start_step: int = 0
    strength: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise ValueError(
                f"Expected strength in [0, 1], got {self.strength}. 1 projects fully, 0 not at all."
            )
        if self.start_step < 0:
            raise ValueError(f"Expected start_step >= 0, got {self.start_step}.")

    def apply(self, blocks: Blocks, public: Public, state: State) -> tuple[Blocks, State]:
        if public.step < self.start_step or self.strength == 0:
            return blocks, state
        codec = public.codec(self.subspace)
        assert isinstance(codec, SubspaceCodec)
        along = codec.basis.expand(codec.basis.coordinates(blocks))
        mixed = {
            name: self.strength * along[name] + (1 - self.strength) * block for name, block in blocks.items()
        }
        return mixed, state

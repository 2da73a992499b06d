"""What a representation is: a map of each sample's gradient, chosen from public knowledge only, or none at all."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from quietgrad.gradients.blocks import Blocks, Space
from quietgrad.gradients.stages import PerSampleGrads, Released
from quietgrad.representations.public import Public

T = TypeVar("T")

State = dict[str, Any]
"""What a representation remembers between steps: tensors, numbers, strings, and dicts or lists of them
(it is saved with `torch.save` and loaded with `weights_only=True`)."""


class Codec(ABC):
    """One step's map into the space where noise is paid, and back.

    Example:
        codec = private.current.codec(0)
        encoded = codec.encode(grads)
    """

    space: Space
    """The blocks it produces."""

    since: int = 0
    """The step from which on its blocks mean what they mean now."""

    @abstractmethod
    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        """Map every sample's gradient; row i depends on sample i alone. May be non-linear."""

    def encode_once(self, grads: PerSampleGrads) -> PerSampleGrads:
        """`encode`, remembered for the other releases of the same micro-batch."""
        return self._once(self.encode, grads)

    @cached_property
    def _once(self) -> Once[PerSampleGrads]:
        return Once()

    @abstractmethod
    def decode(self, released: Released) -> Blocks | None:
        """Back to the blocks that `encode` took; None for a release that only feeds the state."""


class Representation(ABC):
    """Chooses each step's codec. Sees `Public` only, never the batch.

    Example:
        inside = qg.RandomMask(0.5) @ qg.LowRank(rank=2)  # encodes with LowRank first
        mechanism = qg.methods.dp_sgd() @ inside
    """

    def init(self, public: Public) -> State:
        """The state before the first step."""
        return {}

    def __matmul__(self, inner: Representation) -> Representation:
        """`outer @ inner`: this representation inside another's space."""
        from quietgrad.representations.compose import Composed  # compose builds on this file

        return Composed(self, inner)

    @abstractmethod
    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        """This step's codec, and the state from here on (cached bases, W_0, energies).

        Called once per logical step and shared by all releases that hold this same object. `state` is not changed in
        place: return it as it is, or another one. Builds on another representation's codec through
        `public.codec(other)`.
        """

    def observe(self, public: Public, state: State, released: Released) -> State:
        """The state after learning from what was released (public), before decoding; not changed in place."""
        return state


class IdentityCodec(Codec):
    def __init__(self, public: Public) -> None:
        self.space = public.space

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        return grads

    def decode(self, released: Released) -> Blocks:
        return released.blocks


@dataclass(frozen=True)
class Identity(Representation):
    """encode(g) = g: the gradient as it is, DP-SGD's representation."""

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        return IdentityCodec(public), state


class Once(Generic[T]):
    """Results of a function of gradients, remembered as long as these live and no other micro-batch is asked for."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[PerSampleGrads, T] = weakref.WeakKeyDictionary()

    def __call__(self, make: Callable[[PerSampleGrads], T], grads: PerSampleGrads) -> T:
        """make(grads), which must not hold `grads` itself, only its blocks: they would keep each other alive."""
        known = self._made.get(grads)
        if known is None:
            self._made.clear()
            known = make(grads)
            if known is not grads:
                self._made[grads] = known
        return known

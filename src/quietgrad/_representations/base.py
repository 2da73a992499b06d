"""What a representation is: a map of each sample's gradient, chosen from public knowledge only, or none at all.

That knowledge is `Public`: all that representations and post-processing may look at, and what they remember between
steps.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad.schedules import epoch_of

T = TypeVar("T")

State = dict[str, Any]
"""What a representation remembers between steps: tensors, numbers, strings, and dicts or lists of them
(it is saved with `torch.save` and loaded with `weights_only=True`)."""


class Codec(ABC):
    """One step's map into the space where noise is paid, and back.

    Example:
        codec = private.begin_step().codec(0)
        encoded = codec.encode(grads)
    """

    space: Space
    """The blocks it produces. A plain dict from names to shapes will do: it becomes a `Space` after `refresh`."""

    since: int = 0
    """The step from which on its blocks mean what they mean now."""

    @property
    def remark(self) -> str:
        """What `explain()` says about it beside dimension and noise; made of public numbers only."""
        return ""

    @abstractmethod
    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        """Map every sample's gradient; row i depends on sample i alone. May be non-linear."""

    def encode_public(self, grads: PerSampleGrads) -> PerSampleGrads:
        """`encode` for public gradients, which need no check that they are not public."""
        return self.encode(grads)

    def encode_once(self, grads: PerSampleGrads) -> PerSampleGrads:
        """`encode`, remembered for the other releases of the same micro-batch."""
        return self._encoded(self.encode, grads)

    @cached_property
    def _encoded(self) -> GradientCache[PerSampleGrads]:
        return GradientCache()

    @abstractmethod
    def decode(self, released: Released) -> Blocks | None:
        """Back to the blocks that `encode` took; None for a release that only feeds the state."""


class Representation(ABC):
    """Chooses each step's codec. Sees `Public` only, never the batch.

    Example:
        inside = qg.RandomMask(0.5) @ qg.LowRank(rank=2)  # encodes with LowRank first
        mechanism = qg.methods.dp_sgd() @ inside
    """

    @property
    def is_fixed(self) -> bool:
        """Whether a coordinate means the same at every step. Correlated noise needs that."""
        return False

    def init(self, public: Public) -> State:
        """The state before the first step."""
        return {}

    def __matmul__(self, inner: Representation) -> Representation:
        """`outer @ inner`: this representation inside another's space."""
        from quietgrad._representations.compose import Composed  # compose builds on this file

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

    @property
    def is_fixed(self) -> bool:
        return True

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        return IdentityCodec(public), state


class GradientCache(Generic[T]):
    """Results of a function of gradients, kept as long as these live and no other micro-batch is asked for."""

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


# ---- the public view -----------------------------------------------------------------------------------------

PublicLosses = Callable[[nn.Module], Tensor | Iterator[Tensor]]
"""`model -> losses[m]` on non-sensitive data; may yield chunks so that many public samples fit in memory."""


@dataclass(frozen=True, kw_only=True)
class Public:
    """All that a representation or a post-processing may look at.

    No attribute leads to the private batch.

    Args:
        parameters: the current values of the trainable parameters (functions of past releases), in float32 at
            least.
        space: the blocks in which gradients arrive at this representation.
        step, steps, rate: where in the plan this step is.
        seed: public randomness of this step, the same on every rank.
        collect: the engine's per-sample gradients of public losses under a seed, in chunks.
        codecs: this step's codecs, refreshed once and shared.
        place: the representations that this view is inside of, the first applied first.
        encoders: their codecs.
        since: the step from which on `space` means what it means now; after a new mask, older bases are stale.
        noise: what the noise of the whole run adds to each coordinate of the mean gradient, in units of the clip:
            σ/(qN√T). 0 where it is not known, as in federated rounds.

    Example:
        codec = public.codec(subspace)  # another representation's, of this step
        view = public.inside(mask)  # the same step, seen inside a mask
    """

    parameters: Mapping[str, Tensor]
    space: Space
    step: int
    steps: int
    rate: float
    seed: int
    collect: Callable[[PublicLosses, int], Iterator[PerSampleGrads]]
    codecs: Codecs
    place: tuple[Representation, ...] = ()
    encoders: tuple[Codec, ...] = ()
    since: int = 0
    noise: float = 0.0

    @property
    def epoch(self) -> int:
        """Completed passes over the data in expectation."""
        return epoch_of(self.step, self.rate)

    def generator(self, salt: int = 0) -> torch.Generator:
        """A fresh public generator of this step; different salts give independent streams."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + salt) % 2**63)

    def gradients(self, public_losses: PublicLosses) -> Iterator[PerSampleGrads]:
        """Per-sample gradients of public losses, in `space`, in chunks; the same whenever asked within a step."""
        chunks = self.collect(public_losses, self.seed)
        for codec in self.encoders:
            chunks = map(codec.encode_public, chunks)
        return chunks

    def codec(self, representation: Representation) -> Codec:
        """This step's codec of a representation of the same space, refreshed once and shared."""
        return self.codecs.codec(representation, self)

    def observe(self, representation: Representation, released: Released) -> None:
        """Tell a representation of the same space what was released."""
        self.codecs.observe(representation, self, released)

    def inside(self, representation: Representation) -> Public:
        """The view inside another representation: its encoded space, public gradients encoded too."""
        codec = self.codec(representation)
        return replace(
            self,
            space=codec.space,
            place=(*self.place, representation),
            encoders=(*self.encoders, codec),
            since=max(self.since, codec.since),
        )


class States:
    """The states of a run's representations, each a value that is replaced and never changed in place.

    Representations are distinguished by identity and by what they live inside, so GEP's embedding and residual share
    one basis while the same mask used at two depths has two states. Places are numbered in the order of first use,
    which is fixed by the mechanism; a saved state therefore fits the same mechanism built again.

    Args:
        saved: what `state_dict` gave.
    """

    def __init__(self, saved: Mapping[str, State] | None = None) -> None:
        self._places: list[tuple[Representation, ...]] = []
        self._states = {int(number): state for number, state in (saved or {}).items()}

    def number(self, place: tuple[Representation, ...]) -> int:
        """Of a place (a representation, and before it those that it is inside of), given out at its first use."""
        for number, known in enumerate(self._places):
            if len(known) == len(place) and all(a is b for a, b in zip(known, place, strict=True)):
                return number
        self._places.append(place)
        return len(self._places) - 1

    def get(self, number: int) -> State | None:
        """The state at a place; None before the first step."""
        return self._states.get(number)

    def put(self, number: int, state: State) -> None:
        """Replace the state at a place."""
        self._states[number] = state

    def copy(self) -> States:
        """To look at a step without taking it."""
        other = States(self.state_dict())
        other._places = list(self._places)
        return other

    def state_dict(self) -> dict[str, State]:
        """For a checkpoint."""
        return {str(number): state for number, state in self._states.items()}


class Codecs:
    """One step's codecs, each made once.

    Args:
        states: where representations find what they remember, and leave what they learn.
    """

    def __init__(self, states: States) -> None:
        self._states = states
        self._made: dict[int, Codec] = {}

    def codec(self, representation: Representation, public: Public) -> Codec:
        """The codec of a representation at the view's place."""
        number = self._states.number((*public.place, representation))
        if number not in self._made:
            state = self._states.get(number)
            if state is None:
                state = representation.init(public)
            codec, state = representation.refresh(public, state)
            space = Space.coerce(codec.space, like=public.space)
            if space is not codec.space:
                # The codec gave names and shapes alone: its blocks live where `public` has its own. It may be a frozen
                # dataclass, which refuses a plain assignment.
                object.__setattr__(codec, "space", space)
            self._made[number] = codec
            self._states.put(number, state)
        return self._made[number]

    def state(self, representation: Representation, public: Public) -> State:
        """What a representation at the view's place remembers; its codec has been made."""
        return self._states.get(self._states.number((*public.place, representation))) or {}

    def observe(self, representation: Representation, public: Public, released: Released) -> None:
        """Let the representation at the view's place learn from a release; its codec has been made."""
        number = self._states.number((*public.place, representation))
        state = self._states.get(number)
        assert state is not None, "a representation observes what its codec encoded"
        self._states.put(number, representation.observe(public, state, released))

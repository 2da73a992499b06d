"""Post-processing of a released gradient: any function of what is public, free of privacy cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads, Released
from quietgrad._representations.base import Public, Representation, State
from quietgrad._representations.subspace.subspace import Subspace, SubspaceCodec


class Post(ABC):
    """A function of what is already public.

    Example:
        class Sign(qg.Post):
            def apply(self, blocks, public, state):
                return {name: block.sign() for name, block in blocks.items()}, state
    """

    def init(self, public: Public) -> State:
        """Return the state before the first step."""
        return {}

    @abstractmethod
    def apply(self, blocks: Blocks, public: Public, state: State) -> tuple[Blocks, State]:
        """Return the processed gradient and the state from here on; neither is changed in place."""


@dataclass(frozen=True, eq=False)
class Inside(Post):
    """Post-processing inside a representation (`pdp_sgd(…) @ RandomMask(…)` projects the kept coordinates alone).

    decode(post(encode(g̃))): subspaces and bases shrink to the representation's space, and the update stays in it.

    Args:
        post: works in the encoded space, with public gradients encoded too.
        representation: linear, as masks are.
    """

    post: Post
    representation: Representation

    def init(self, public: Public) -> State:
        return self.post.init(public.inside(self.representation))

    def apply(self, blocks: Blocks, public: Public, state: State) -> tuple[Blocks, State]:
        codec = public.codec(self.representation)
        one = BlockwiseGrads({name: DenseGrad(block[None]) for name, block in blocks.items()}, 1)
        encoded = {name: rows[0] for name, rows in codec.encode(one).dense().items()}
        processed, state = self.post.apply(encoded, public.inside(self.representation), state)
        decoded = codec.decode(Released(blocks=processed, std=0.0, sensitivity=0.0))
        assert decoded is not None, "a representation that a mechanism lives in decodes to a gradient"
        return decoded, state


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectOnto(Post):
    """PDP-SGD's post-processing: a gradient that is already public is projected.

    g̃ ← s·VVᵀg̃ + (1 − s)·g̃: the release inside a public subspace, with 1 − s of what lies outside.

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

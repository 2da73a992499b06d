"""The three states of a gradient, and the public view that representations may look at.

    PerSampleGrads ──clip──▶ ClippedSum ──noise──▶ Released
       private              private, knows           public
                            its sensitivity

A gradient crosses each border through exactly one kind of object (a `Clip`, a `Noise`), so noise before clipping
or scaling between the two does not type-check.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from quietgrad.gradients.base import BlockGrads, Blocks
from quietgrad.gradients.dense import SmallBlocks

if TYPE_CHECKING:
    from quietgrad.representations.base import Codec, Representation

Space = dict[str, torch.Size]
"""The names and shapes of blocks."""

PublicLosses = Callable[[nn.Module], Tensor | Iterator[Tensor]]
"""`model -> losses[m]` on non-sensitive data; may yield chunks so that many public samples fit in memory."""


class PerSampleGrads(ABC):
    """Private: the gradients of n samples, in named blocks, formed or not."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """n, the number of samples."""

    @property
    @abstractmethod
    def space(self) -> Space:
        """The blocks that `weighted_sum` returns."""

    @abstractmethod
    def squared_norms(self) -> Float64[Tensor, " n"]:
        """‖g_i‖² over all blocks; never below the true norm of what `weighted_sum` sums."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        """Σ_i weights_i · g_i; a row of weight 0 contributes exactly 0."""

    @abstractmethod
    def dense(self) -> Blocks:
        """All gradients formed, each block `[n, *shape]`."""


class BlockwiseGrads(PerSampleGrads):
    """Per-sample gradients whose blocks are independent of each other: what capture gives."""

    def __init__(self, blocks: Mapping[str, BlockGrads], samples: int) -> None:
        self.blocks = dict(blocks)
        self._samples = samples
        for name, block in self.blocks.items():
            assert block.samples == samples, f"{name} holds {block.samples} rows, expected {samples}"

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def space(self) -> Space:
        return {name: block.shape for name, block in self.blocks.items()}

    def squared_norms(self) -> Float64[Tensor, " n"]:
        norms = [block.squared_norms() for block in self._single.values()]
        norms += [] if self._small is None else [self._small.squared_norms()]
        return torch.stack(norms).sum(0) if norms else torch.zeros(self.samples, dtype=torch.float64)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        sums = {} if self._small is None else self._small.weighted_sum(weights)
        sums |= {name: block.weighted_sum(weights) for name, block in self._single.items()}
        return {name: sums[name] for name in self.blocks}

    @cached_property
    def _small(self) -> SmallBlocks | None:
        return SmallBlocks.among(self.blocks)

    @cached_property
    def _single(self) -> dict[str, BlockGrads]:
        """The blocks that take operations of their own."""
        return {k: block for k, block in self.blocks.items() if self._small is None or k not in self._small}

    def dense(self) -> Blocks:
        return {name: block.dense() for name, block in self.blocks.items()}


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """Private: Σ_i clip(g_i). Removing one sample moves it by at most `sensitivity` in Euclidean norm."""

    blocks: Blocks
    sensitivity: float

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Sums of disjoint samples of the same step."""
        assert self.sensitivity == other.sensitivity, "a step's micro-batches share one clip"
        keys, mine, theirs = list(self.blocks), list(self.blocks.values()), list(other.blocks.values())
        assert keys == list(other.blocks), "a step's micro-batches share one space"
        return ClippedSum(
            blocks=dict(zip(keys, torch._foreach_add(mine, theirs), strict=True)),
            sensitivity=self.sensitivity,
        )


@dataclass(frozen=True, kw_only=True)
class Released:
    """Public: (Σ_i clip(g_i) + noise) / qN, with the std of its noise and the sensitivity it was made for.

    Both are in the units of `blocks` (divided by qN like them); their ratio is what the accountant is told.
    """

    blocks: Blocks
    std: float
    sensitivity: float

    @property
    def precision(self) -> float:
        """(S/s)²: what this release adds to σ_eff⁻² of its step."""
        if self.sensitivity == 0.0:
            return 0.0
        return (self.sensitivity / self.std) ** 2 if self.std > 0.0 else float("inf")


@dataclass(frozen=True, kw_only=True)
class Public:
    """All that a representation or a post-processing may look at: it holds no way to the private batch.

    Args:
        parameters: the current values of the trainable parameters (functions of past releases).
        space: the blocks in which gradients arrive at this representation.
        step, steps, rate: where in the plan this step is.
        seed: public randomness of this step, the same on every rank.
        gradients: per-sample gradients of public losses, in `space`, in chunks.
        codec: this step's codec of another representation of the same space, refreshed once and shared.
        observe: tell another representation of the same space what was released.
        inside: the public view inside another representation: its encoded space, public gradients encoded too.
        since: the step from which on `space` means what it means now; after a new mask, older bases are stale.
    """

    parameters: Mapping[str, Tensor]
    space: Space
    step: int
    steps: int
    rate: float
    seed: int
    gradients: Callable[[PublicLosses], Iterator[PerSampleGrads]]
    codec: Callable[[Representation], Codec]
    observe: Callable[[Representation, Released], None]
    inside: Callable[[Representation], Public]
    since: int = 0

    @property
    def epoch(self) -> int:
        """Completed passes over the data in expectation."""
        return int(self.step * self.rate + 1e-9)

    def generator(self, salt: int = 0) -> torch.Generator:
        """A fresh public generator of this step; different salts give independent streams."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + salt) % 2**63)


@contextlib.contextmanager
def public_randomness(seed: int) -> Iterator[None]:
    """Run public code (dropout, random labels) under a public seed; the caller's global rng is untouched."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield

"""The three states of a gradient.

    PerSampleGrads ──clip──▶ ClippedSum ──noise──▶ Released
       private              private, knows           public
                            its sensitivity

A gradient crosses each border through exactly one kind of object (a `Clip`, a `Noise`), so noise before clipping
or scaling between the two does not type-check.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Blocks, DenseGrad, FusedBlocks, fuse
from quietgrad._gradients.grid import Grid
from quietgrad._gradients.space import Space, coordinates


class PerSampleGrads(ABC):
    """Private: the gradients of n samples, in named blocks, formed or not.

    Example:
        grads: qg.PerSampleGrads = qg.BlockwiseGrads({"w": block}, samples=8)
        norms = grads.squared_norms().sqrt()
    """

    @property
    @abstractmethod
    def samples(self) -> int:
        """n, the number of samples."""

    @property
    @abstractmethod
    def space(self) -> Space:
        """The blocks that `weighted_sum` returns, in the precision of the rows and of what is released of them."""

    @property
    def blocks(self) -> dict[str, BlockGrads]:
        """Each block on its own; formed, where a representation mixes them."""
        return {name: DenseGrad(rows) for name, rows in self.dense().items()}

    @property
    def first_inputs(self) -> Tensor | None:
        """What the first layer was given, if the gradients hold it as it was."""
        return None

    @abstractmethod
    def squared_norms(self) -> Float64[Tensor, " n"]:
        """‖g_i‖² over all blocks; never below the true norm of what `weighted_sum` sums."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        """Σ_i weights_i · g_i, as `BlockGrads.weighted_sum` has it; a row of weight 0 contributes exactly 0."""

    @abstractmethod
    def dense(self) -> Blocks:
        """All gradients formed, each block `[n, *shape]`."""


class BlockwiseGrads(PerSampleGrads):
    """Per-sample gradients in independent blocks, as capture returns them.

    Args:
        first_inputs: what the first layer was given, where the blocks hold it in another form.
        keep_factors: False if `weighted_sum` is the last thing asked for. Each block is freed once it is summed,
            so that later sums reuse its memory.

    Example:
        grads = qg.BlockwiseGrads({"w": block}, samples=8)
        total = grads.weighted_sum(torch.ones(8))
    """

    def __init__(
        self,
        blocks: Mapping[str, BlockGrads],
        samples: int,
        *,
        first_inputs: Tensor | None = None,
        keep_factors: bool = True,
    ) -> None:
        self._blocks = dict(blocks)
        self._samples, self._first_inputs = samples, first_inputs
        self._keep_factors, self._was_summed = keep_factors, False
        for name, block in self._blocks.items():
            assert block.samples == samples, f"{name} holds another number of rows"

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def blocks(self) -> dict[str, BlockGrads]:
        assert not self._was_summed, "gradients without factors were summed already"
        return self._blocks

    @property
    def space(self) -> Space:
        return Space.of(self.blocks)

    @property
    def first_inputs(self) -> Tensor | None:
        first = next(iter(self.blocks.values()), None)
        return self._first_inputs if first is None or self._first_inputs is not None else first.layer_inputs

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return next(iter(self.blocks.values())).device

    def squared_norms(self) -> Float64[Tensor, " n"]:
        parts: list[BlockGrads | FusedBlocks] = [*self._single.values(), *self._fused.values()]
        # The squared norm of a sample is the sum over its blocks. It is added in float64, so that many blocks lose less
        # than the clip's margin: a norm below the truth would let a sample through unclipped.
        norms = [part.squared_norms() for part in parts]
        return torch.stack(norms).sum(0) if norms else torch.zeros(self.samples, dtype=torch.float64)

    def drop_factors(self) -> BlockwiseGrads:
        """Return the same gradients for one sum, which frees them. Do not keep the original: it holds them too."""
        return BlockwiseGrads(self.blocks, self.samples, first_inputs=self._first_inputs, keep_factors=False)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        return dict(self.weighted_sums(weights))

    def weighted_sums(self, weights: Float[Tensor, " n"]) -> Iterator[tuple[str, Tensor]]:
        """Yield the weighted sum of one block after the other, in the order of the blocks."""
        names, single, fused = list(self.blocks), self._single, dict[str, Tensor]()
        for name in names:
            if name in single:
                # Without factors to keep, each block is freed as soon as it is summed: factors and sums of all blocks
                # never exist at once.
                yield name, single[name].weighted_sum(weights)
                if not self._keep_factors:
                    del single[name], self._blocks[name]
                continue
            if name not in fused:
                fused |= next(blocks for names, blocks in self._fused.items() if name in names).weighted_sum(
                    weights
                )
            yield name, fused.pop(name)
        self._was_summed = not self._keep_factors

    @cached_property
    def _fused(self) -> dict[tuple[str, ...], FusedBlocks]:
        """Blocks that one operation serves, by their names."""
        return fuse(self.blocks)

    @cached_property
    def _single(self) -> dict[str, BlockGrads]:
        """The blocks that take operations of their own."""
        # Fused blocks are normed and summed by one operation for all of them; the others each by their own.
        shared = {name for names in self._fused for name in names}
        return {name: block for name, block in self.blocks.items() if name not in shared}

    def dense(self) -> Blocks:
        return {name: block.dense() for name, block in self.blocks.items()}


class ScatteredGrads(PerSampleGrads):
    """This rank's gradients, whose weighted sums are this rank's rows of the sums over all ranks.

    Each block is summed, rounded to whole steps, added up over the ranks and cut to this rank's rows before the next
    one, so no rank ever holds all sums as a whole. Integers add exactly: the ranks' order does not matter.

    Args:
        grads: of this rank's samples.
        space: the blocks with this rank's rows of them.
        grid: to which sums are rounded; None adds them up as they are (a non-private run).
        scatter: adds up one block over all ranks, given its number, and returns this rank's rows.
    """

    def __init__(
        self,
        grads: BlockwiseGrads,
        space: Space,
        grid: Grid | None,
        scatter: Callable[[int, Tensor], Tensor],
    ) -> None:
        self._grads, self._space, self._grid, self._scatter = grads, space, grid, scatter

    @property
    def samples(self) -> int:
        return self._grads.samples

    @property
    def space(self) -> Space:
        return self._space

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._grads.squared_norms()

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        sums = {}
        for number, (name, whole) in enumerate(self._grads.weighted_sums(weights)):
            if self._grid is None:
                sums[name] = self._scatter(number, whole.double())
            else:
                sums[name] = self._grid.values(self._scatter(number, self._grid.steps(whole)))
        return sums

    @property
    def blocks(self) -> dict[str, BlockGrads]:
        raise AssertionError("blocks of a sharded sum are added up one by one")

    def dense(self) -> Blocks:
        raise AssertionError("blocks of a sharded sum are added up one by one")


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """Private: Σ_i clip(g_i).

    Removing one sample moves it by at most `sensitivity` in Euclidean norm.

    Args:
        grid: on which sums of micro-batches are added, exactly; None adds them as they are (a non-private run).
        space: the space that it is released in, with the dtypes of its release; left out, that of the blocks.

    Example:
        total = qg.FlatClip(1.0)(grads, step=0)
        assert total.sensitivity == 1.0
    """

    blocks: Blocks
    sensitivity: float
    grid: Grid | None = None
    space: Space = field(default_factory=lambda: Space({}))

    def __post_init__(self) -> None:
        if not self.space:
            object.__setattr__(self, "space", Space.of(self.blocks))  # the class is frozen

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Sums of disjoint samples of the same step."""
        assert (self.sensitivity, self.grid) == (other.sensitivity, other.grid), (
            "micro-batches share one clip"
        )
        assert list(self.blocks) == list(other.blocks), "a step's micro-batches share one space"
        added = {name: self._add(block, other.blocks[name]) for name, block in self.blocks.items()}
        return replace(self, blocks=added)

    @property
    def coordinates(self) -> int:
        """p, of all blocks."""
        return coordinates(self.space)

    def wide(self) -> Blocks:
        """Copies of the blocks in float64: what ranks send to each other has the same size everywhere."""
        return {name: block.to(torch.float64, copy=True) for name, block in self.blocks.items()}

    def released_in(self, name: str) -> torch.dtype:
        """The precision in which a block is released: that of the gradients, float32 at least."""
        return self.space.part(name).dtype

    def _add(self, mine: Tensor, theirs: Tensor) -> Tensor:
        # On the grid, sums are whole numbers of steps and add exactly. The total is then the same for any micro-batches
        # and any order, which sensitivity and resumed runs rely on.
        if self.grid is None:
            return mine.double() + theirs
        return self.grid.values(self.grid.steps(mine) + self.grid.steps(theirs))


@dataclass(frozen=True, kw_only=True)
class Released:
    """Public: (Σ_i clip(g_i) + noise) / qN.

    It holds the std of its noise and the sensitivity it was made for.

    Both are in the units of `blocks` (divided by qN like them); their ratio is what the accountant counts.

    Args:
        gain: how much wider the noise in `blocks` is than `std`. Above 1 for correlated noise, of which later releases
            take a part back.

    Example:
        released, _ = qg.Gaussian().release(total, draw, qg.NoiseState())
        assert released.std / released.sensitivity == draw.std / total.sensitivity
    """

    blocks: Blocks
    std: float
    sensitivity: float
    gain: float = 1.0

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each coordinate of `blocks`."""
        return self.std * self.gain

    @property
    def precision(self) -> float:
        """(S/s)²: what this release adds to σ_eff⁻² of its step."""
        # A release that no sample moves costs nothing. One without noise that samples do move costs everything.
        if self.sensitivity == 0.0:
            return 0.0
        return (self.sensitivity / self.std) ** 2 if self.std > 0.0 else float("inf")

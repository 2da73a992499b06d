"""Named blocks, the interface of per-sample gradients of one block, and gradients that are formed."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int, Shaped
from torch import Tensor

from quietgrad._gradients.row_arithmetic import (
    as_rows,
    at_least_single,
    each_times,
    row_squared_norms,
    weighted_rows,
)
from quietgrad._gradients.small_blocks import block_norms, block_sums
from quietgrad._gradients.space import Shapes, Space
from quietgrad._kernels.block_rows import Factors

T = TypeVar("T")

Blocks = dict[str, Tensor]
"""Named tensors: a parameter, a carrier, an embedding each."""

Positions = Int[Tensor, " _"]
"""Sorted positions in a block's flattened coordinates, or in those of all blocks one after the other."""

SMALL = 1 << 16
"""Numbers (of all samples) that are not worth operations of their own; more are not worth a copy."""


def flatten(blocks: Mapping[str, Tensor]) -> Shaped[Tensor, " p"]:
    """All blocks one after the other, in the widest of their dtypes: integers as such, others at least in float32."""
    dtype = functools.reduce(torch.promote_types, (block.dtype for block in blocks.values()))
    dtype = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
    return torch.cat([block.detach().flatten().to(dtype) for block in blocks.values()])


def unflatten(flat: Shaped[Tensor, " p"], like: Mapping[str, Tensor]) -> Blocks:
    """The blocks of a vector, in the shapes, dtypes and places of `like`."""
    return {name: part.to(like[name]) for name, part in split_blocks(flat, Space.of(like)).items()}


def flatten_rows(blocks: Mapping[str, Shaped[Tensor, "n ..."]]) -> Shaped[Tensor, "n p"]:
    """Blocks of n rows each (`[n, *shape]`), side by side."""
    return torch.cat([as_rows(block) for block in blocks.values()], 1)


def split_blocks(flat: Shaped[Tensor, "*n p"], shapes: Shapes) -> Blocks:
    """The blocks of a vector, or of each row of a matrix: views, where memory allows them."""
    parts = flat.split([shape.numel() for shape in shapes.values()], dim=-1)
    shaped = zip(shapes.items(), parts, strict=True)
    return {name: part.reshape((*flat.shape[:-1], *shape)) for (name, shape), part in shaped}


def pack(items: Iterable[T], size: Callable[[T], int], limit: int) -> Iterator[list[T]]:
    """Split items into runs whose sizes add up to at most `limit`; a larger item is alone in its run."""
    run: list[T] = []
    filled = 0
    for item in items:
        # An item is never cut. One above the limit gets a run of its own, so the limit bounds runs of several items
        # only.
        if run and filled + size(item) > limit:
            yield run
            run, filled = [], 0
        run.append(item)
        filled += size(item)
    if run:
        yield run


def scale_each(
    rows: Float[Tensor, "n x d"], scale: Float[Tensor, "d ..."] | None, *, transposed: bool = False
) -> Float[Tensor, "n x d"]:
    """rows_n · S, with S = diag(scale) for a vector; sample by sample, so that no rounding depends on the batch."""
    if scale is None:
        return rows
    if scale.dim() == 1:
        return rows * scale.to(rows)
    return each_times(rows, (scale.T if transposed else scale).to(rows))


class FusedBlocks(ABC):
    """Blocks side by side, all of which one operation serves."""

    @abstractmethod
    def squared_norms(self) -> Float64[Tensor, " n"]:
        """Σ over blocks of ‖g_i‖²."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        """Σ_i weights_i · g_i of each block."""


@dataclass(frozen=True)
class FusionKey:
    """Which blocks are fused: those of equal keys.

    Args:
        fused: makes one `FusedBlocks` of several named blocks.
        layout: what these blocks must have in common, such as dtype and device.
    """

    fused: Callable[[Mapping[str, Any]], FusedBlocks]
    layout: tuple[Any, ...]


def fuse(blocks: Mapping[str, BlockGrads]) -> dict[tuple[str, ...], FusedBlocks]:
    """Fuse blocks of equal keys, by their names; a block that is alone with its key is left out."""
    groups: dict[FusionKey, dict[str, BlockGrads]] = {}
    for name, block in blocks.items():
        if (key := block.fusion_key) is not None:
            groups.setdefault(key, {})[name] = block
    # A model has a bias or a scale for almost every layer. To start an operation costs more than to norm a thousand
    # numbers, so all of them together take about as long as one.
    return {tuple(group): key.fused(group) for key, group in groups.items() if len(group) > 1}


class BlockGrads(ABC):
    """Per-sample gradients of one named block, each of the block's `shape`.

    Subclasses hold factors, indices or the dense tensor. They answer what every step needs: norms, weighted sums, rows
    on demand, scaling. What only one representation needs lies beside it, as `functools.singledispatch` functions with
    a default that forms the rows (`_representations/subspace/projections.py` and others).

    Example:
        block: qg.BlockGrads = qg.DenseGrad(torch.randn(8, 3, 5))
        norms = block.squared_norms()
    """

    is_formed: ClassVar[bool] = False
    """Whether the rows are there already, so that `dense()` costs nothing."""

    is_zero: ClassVar[bool] = False
    """Whether the losses do not depend on this block at all."""

    algorithm: str
    """How norms and sums are computed, as `explain()` calls it."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """n, the number of samples (rows)."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of one sample's gradient."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Precision of the rows, float32 at least; what is released of them has it too."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the gradients are."""

    @abstractmethod
    def squared_norms(self) -> Float64[Tensor, " n"]:
        """‖g_i‖² in float64, never below the true squared norm of the rows `weighted_sum` sums."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        """Σ_i weights_i · g_i. A row of weight exactly 0 contributes exactly 0, even if it holds NaN.

        In float64 over many rows (`row_arithmetic`): rounding the sum would depend on everybody in the batch. What was
        added up in one run comes as it is: whoever goes on computing with it widens it first.
        """

    @abstractmethod
    def dense(self) -> Float[Tensor, "n *shape"]:
        """All gradients, formed."""

    def form(self) -> DenseGrad:
        """The same gradients as formed rows."""
        return DenseGrad(self.dense())

    def scale(
        self,
        *,
        left: Float[Tensor, "o ..."] | None = None,
        right: Float[Tensor, "i ..."] | None = None,
    ) -> BlockGrads:
        """Return left · G_n · right, of the same shape; nothing is formed where factors can be scaled instead.

        A block of shape `[o, ...]` is a matrix `[o, i]`, a vector one of a single column.

        Args:
            left: a diagonal `[o]` or a matrix `[o, o]`; None is the identity.
            right: a diagonal `[i]` or a matrix `[i, i]`; None is the identity.
        """
        return self.form().scale(left=left, right=right)

    def drop_factors(self) -> BlockGrads:
        """Return the same gradients for norms and weighted sums alone.

        What the norms need is computed now, while the factors are in the cache. Factors that the sum does without are
        freed.
        """
        return self

    # ---- what it costs --------------------------------------------------------------------------------------

    @property
    def row_bytes(self) -> float:
        """Memory of one row between norm and sum, beyond what the backward left."""
        return 0.0

    @property
    def fusion_key(self) -> FusionKey | None:
        """Blocks of equal keys are served by one operation; None: this one by operations of its own."""
        return None

    @property
    def layer_inputs(self) -> Tensor | None:
        """What the layer was given, if the gradients hold it as it was."""
        return None


class DenseGrad(BlockGrads):
    """All n gradients as one tensor `[n, *shape]` (public attribute `rows`).

    Example:
        block = qg.DenseGrad(torch.randn(8, 3, 5))  # 8 samples of a matrix [3, 5]
        total = block.weighted_sum(torch.ones(8))
    """

    is_formed = True
    algorithm = "dense"

    def __init__(self, rows: Float[Tensor, "n *shape"]) -> None:
        self.rows = at_least_single(rows)

    @property
    def samples(self) -> int:
        return self.rows.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape[1:]

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return row_squared_norms(self.rows)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        return weighted_rows(weights, as_rows(self.rows)).reshape(self.shape)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self.rows

    def form(self) -> DenseGrad:
        return self

    def scale(
        self,
        *,
        left: Float[Tensor, "o ..."] | None = None,
        right: Float[Tensor, "i ..."] | None = None,
    ) -> DenseGrad:
        # Left and right act on the two sides of a matrix. Scaling acts on the last dimension, so the rows are
        # transposed in between and back.
        matrices = self.rows.reshape(self.samples, self.shape[0] if self.shape else 1, -1)
        columns = scale_each(matrices, right).transpose(1, 2)
        return DenseGrad(scale_each(columns, left, transposed=True).transpose(1, 2).reshape(self.rows.shape))

    @property
    def fusion_key(self) -> FusionKey | None:
        small = self.rows.numel() <= SMALL
        return FusionKey(SmallBlocks, (self.rows.dtype, self.rows.device)) if small else None

    def row_factors(self) -> Factors:
        """Return the rows, each as a vector."""
        return None, as_rows(self.rows)

    @property
    def row_bytes(self) -> float:
        return self.shape.numel() * self.rows.element_size()


@runtime_checkable
class SmallBlock(Protocol):
    """A block of which every sample has a row, or a row times another one."""

    @property
    def shape(self) -> torch.Size: ...

    def row_factors(self) -> Factors:
        """Return these rows."""


class SmallBlocks(FusedBlocks):
    """Many small blocks side by side, so that one operation serves all small layers, biases and scales of a model."""

    def __init__(self, blocks: Mapping[str, SmallBlock]) -> None:
        self._shapes = {name: block.shape for name, block in blocks.items()}
        self._factors = [block.row_factors() for block in blocks.values()]

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return block_norms(self._factors)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        return split_blocks(block_sums(self._factors, weights), self._shapes)

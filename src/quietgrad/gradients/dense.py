"""Gradients that are formed: norms, biases, the fallback, and whatever else is small."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.blocks import (
    BlockGrads,
    Blocks,
    Kin,
    Positions,
    Together,
    flatten_rows,
    split_blocks,
)
from quietgrad.gradients.pooling import Pooling
from quietgrad.gradients.row_arithmetic import (
    as_rows,
    at_least_single,
    each_off,
    each_times,
    row_squared_norms,
    weighted_rows,
)

SMALL = 1 << 16
"""Numbers (of all samples) that are not worth operations of their own; more are not worth a copy."""


class DenseGrad(BlockGrads):
    """All n gradients as one tensor `[n, *shape]` (public attribute `rows`).

    Example:
        block = qg.gradients.DenseGrad(torch.randn(8, 3, 5))  # 8 samples of a matrix [3, 5]
        total = block.weighted_sum(torch.ones(8))
    """

    is_formed = True
    way = "dense"

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

    def formed(self) -> DenseGrad:
        return self

    def add_weighted_sums(self, total: Float[Tensor, "k p"], weights: Float[Tensor, "k n"]) -> None:
        total.addmm_(weights.to(total), as_rows(self.rows))  # without a copy of the total's size

    def times_right(self, right: Float[Tensor, "r i"]) -> DenseGrad:
        return DenseGrad(each_times(self.rows.flatten(2), right.T))

    def times_left(self, left: Float[Tensor, "o r"]) -> DenseGrad:
        return DenseGrad(each_times(self.rows.flatten(2).transpose(1, 2), left).transpose(1, 2))

    def off_rows(self, right: Float[Tensor, "r i"]) -> DenseGrad:
        return DenseGrad(each_off(self.rows.flatten(2), right))

    def restricted(self, kept: Positions) -> DenseGrad:
        return DenseGrad(as_rows(self.rows).index_select(1, kept))

    def pooled(self, pooling: Pooling) -> DenseGrad:
        return DenseGrad(pooling.added(self.rows))

    @property
    def kin(self) -> Kin | None:
        small = self.rows.numel() <= SMALL
        return Kin(SmallBlocks, (self.rows.dtype, self.rows.device)) if small else None

    @property
    def row_bytes(self) -> float:
        return self.shape.numel() * self.rows.element_size()


class SmallBlocks(Together):
    """Many small dense blocks side by side, so that one operation serves all biases and scales of a model."""

    def __init__(self, blocks: Mapping[str, DenseGrad]) -> None:
        self._blocks = blocks
        self._rows = flatten_rows({name: block.rows for name, block in blocks.items()})

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return row_squared_norms(self._rows)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        space = {name: block.shape for name, block in self._blocks.items()}
        return split_blocks(weighted_rows(weights, self._rows), space)


class ZeroGrad(BlockGrads):
    """The gradient of a parameter that the losses do not depend on."""

    is_zero = True
    way = "zero"

    def __init__(self, samples: int, like: Tensor) -> None:
        self._samples = samples
        self._like = like.detach()

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def shape(self) -> torch.Size:
        return self._like.shape

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return torch.zeros(self._samples, dtype=torch.float64, device=self._like.device)

    @property
    def device(self) -> torch.device:
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self._like.dtype, torch.float32)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        return torch.zeros_like(self._like, dtype=torch.float64)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self._like.new_zeros(self._samples, *self._like.shape, dtype=self.dtype)

    def project(self, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
        return self._like.new_zeros(self._samples, directions.shape[0], dtype=torch.float64)

    def weighted_sums(self, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
        return self._like.new_zeros(weights.shape[0], *self._like.shape)

    def times_right(self, right: Float[Tensor, "r i"]) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(self.shape[0], len(right)))

    def times_left(self, left: Float[Tensor, "o r"]) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(left.shape[1], self.shape[1:].numel()))

    def off_rows(self, right: Float[Tensor, "r i"]) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(self.shape[0], self.shape[1:].numel()))

    def restricted(self, kept: Positions) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(len(kept)))

    def pooled(self, pooling: Pooling) -> ZeroGrad:
        return ZeroGrad(pooling.people, self._like)

    @property
    def projects_unformed(self) -> bool:
        return True

    @property
    def kept_bytes(self) -> int:
        return 0

"""Gradients of tables, of which a sample touches few rows: embeddings, never the dense vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Blocks, FusedBlocks, FusionKey, scale_each
from quietgrad._gradients.row_arithmetic import at_least_single, row_squared_norms, zero_rows
from quietgrad._kernels.indexed_rows import Pairs
from quietgrad._kernels.registry import operation


class IndexedGrad(BlockGrads):
    """G_n = Σ_t e_{id_t} b_tᵀ of a table `[v, o]`, rows of equal id within a sample added up once.

    Stable public attributes: ids `[m]` table row, owner `[m]` sample in ascending order, values `[m, o]`; each (owner,
    id) pair occurs once, so that norms are sums of squares: nothing cancels afterwards. On devices the last pair is
    followed by copies of it whose values are zero, so that no shape depends on how many pairs there are.

    Args:
        single: whether the m entries are those of m different samples, so that nothing is to be added up.
        most: how many entries a sample has at most, where shapes say it.
    """

    algorithm = "indexed"

    def __init__(
        self,
        ids: Int[Tensor, " m"],
        owner: Int[Tensor, " m"],
        values: Float[Tensor, "m o"],
        *,
        samples: int,
        table: int,
        single: bool = False,
        most: int | None = None,
    ) -> None:
        self._samples, self._table, self.most = samples, table, most
        self._squares: Tensor | None = None
        self.one_row_each = single and len(ids) == samples
        """Whether entry i is that of sample i."""
        if single:
            self.ids, self.owner, self.values = ids, owner, at_least_single(values)
            return
        # A token that a sample reads several times has one gradient, the sum over its positions. Norms need that sum:
        # ‖x + y‖² is not ‖x‖² + ‖y‖².
        self.ids, self.owner, self.values, self._squares = table_pairs(
            ids, owner, at_least_single(values), samples, table
        )

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self._table, self.values.shape[1]))

    def squared_norms(self) -> Float64[Tensor, " n"]:
        if self._squares is not None:
            return self._squares
        norms = torch.zeros(self._samples, dtype=torch.float64, device=self.values.device)
        return norms.index_add_(0, self.owner, row_squared_norms(self.values))

    @property
    def device(self) -> torch.device:
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float64[Tensor, "*shape"]:
        total = self.values.new_zeros(self.shape, dtype=torch.float64)
        self.add_weighted(total, weights)
        return total

    def add_weighted(self, total: Float64[Tensor, "*shape"], weights: Float[Tensor, " n"]) -> None:
        """total += Σ_i weights_i · g_i."""
        table_sums(self.ids, self.owner, self.values, weights, total)

    def dense(self) -> Float[Tensor, "n *shape"]:
        dense = self.values.new_zeros(self._samples, *self.shape)
        has_copies = self.device.type != "cpu"
        return dense.index_put_((self.owner, self.ids), self.values, accumulate=has_copies)

    def scale(
        self,
        *,
        left: Float[Tensor, "v ..."] | None = None,
        right: Float[Tensor, "o ..."] | None = None,
    ) -> BlockGrads:
        """A diagonal scales touched rows alone; a matrix on the left mixes rows, so the table is formed."""
        if left is not None and left.dim() > 1:
            return super().scale(left=left, right=right)
        values = scale_each(self.values[:, None], right)[:, 0]
        return self.with_values(values if left is None else values * left.to(values)[self.ids, None])

    @property
    def fusion_key(self) -> FusionKey | None:
        layout = (self.values.shape, self.dtype, self.device)
        return FusionKey(OneRowTables, layout) if self.one_row_each else None

    def with_values(self, values: Float[Tensor, "m o2"]) -> IndexedGrad:
        """The same entries of the table with other values."""
        return IndexedGrad(
            self.ids, self.owner, values, samples=self._samples, table=self._table, most=self.most
        )


@operation()
def table_pairs(
    ids: Int[Tensor, " m"], owner: Int[Tensor, " m"], values: Float[Tensor, "m o"], samples: int, table: int
) -> Pairs:
    """Add up the values of equal ids of each sample, in their order; owners ascend in what is returned.

    Returns:
        ids, owners, values, and the squared norm of each sample, never below the truth.

    Checked by: tests/kernels/test_indexed_rows.py
    """
    # One number for sample and token together makes it a single sort.
    keys, position = _find_pairs(owner * table + ids)
    summed = values.new_zeros(len(keys), values.shape[1]).index_add_(0, position, values)
    owner = keys // table
    squares = torch.zeros(samples, dtype=torch.float64, device=values.device)
    return keys % table, owner, summed, squares.index_add_(0, owner, row_squared_norms(summed))


@operation()
def table_sums(
    ids: Int[Tensor, " m"],
    owner: Int[Tensor, " m"],
    values: Float[Tensor, "m o"],
    weights: Float[Tensor, " n"],
    total: Float64[Tensor, "v o"],
) -> None:
    """Add w·value of every entry to its row of `total`; one of weight 0 adds exactly 0.

    Checked by: tests/kernels/test_indexed_rows.py
    """
    per_row = weights.double()[owner]
    total.index_add_(0, ids, zero_rows(values, per_row == 0).double() * per_row[:, None])


def _find_pairs(keys: Int[Tensor, " m"]) -> tuple[Int[Tensor, " pairs"], Int[Tensor, " m"]]:
    """Return the different keys in ascending order, and where in them each key is."""
    if keys.device.type == "cpu" or len(keys) == 0:
        found, position = torch.unique(keys, return_inverse=True)
        return found, position
    # The host would have to wait for the number of different keys. So there are as many as there may be, and the rest
    # are copies of the last one, to which no position leads.
    ordered, order = keys.sort()
    is_new = torch.ones_like(ordered)
    is_new[1:] = ordered[1:] != ordered[:-1]
    number = is_new.cumsum(0) - 1
    found = ordered[-1:].repeat(len(keys)).scatter_(0, number, ordered)
    return found, torch.empty_like(number).scatter_(0, order, number)


class OneRowTables(FusedBlocks):
    """Many tables of one width of which each sample reads one row, side by side: one operation serves all columns of a
    recommender.
    """

    def __init__(self, tables: Mapping[str, IndexedGrad]) -> None:
        self._tables = tables
        self._values = torch.stack([table.values for table in tables.values()])

    def squared_norms(self) -> Float64[Tensor, " n"]:
        count, samples = self._values.shape[:2]
        return row_squared_norms(self._values.flatten(0, 1)).view(count, samples).sum(0)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        heights = [table.shape[0] for table in self._tables.values()]
        # All tables lie below each other in one tall table, and the ids of each are shifted by where it begins.
        starts = [sum(heights[:place]) for place in range(len(heights))]
        ids = torch.stack([t.ids + start for t, start in zip(self._tables.values(), starts, strict=True)])
        w = weights.double().repeat(len(heights))
        values = zero_rows(self._values.flatten(0, 1), w == 0).double() * w[:, None]
        total = values.new_zeros(sum(heights), values.shape[1]).index_add_(0, ids.flatten(), values)
        return dict(zip(self._tables, total.split(heights), strict=True))

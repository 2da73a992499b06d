"""A table that is also a matrix: an embedding tied to the output layer, its cross terms counted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.gram import OVERCLIP
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._kernels.rounding import longest, slack

CANCELS = 2.0
"""How much longer than G its part M may be where it is added up in float32."""


class TiedGrad(BlockGrads):
    """G = E + M with E indexed and M = Σ_s b_s a_sᵀ factored; the dense vocabulary is never formed.

        ‖G‖² = ‖E‖² + ‖M‖² + 2 Σ_s Σ_m b_s[id_m]·(a_s · e_m)

    Stable public attributes: table (E), matrix (M).

    Args:
        formed: whether every row is formed, one at a time, for its norm and in the sum.
    """

    algorithm = "tied"

    def __init__(self, table: IndexedGrad, matrix: FactoredGrad, *, formed: bool = False) -> None:
        assert table.shape == matrix.shape
        assert table.samples == matrix.samples
        self.table, self.matrix, self._one_by_one = table, matrix, formed

    @property
    def samples(self) -> int:
        return self.table.samples

    @property
    def shape(self) -> torch.Size:
        return self.table.shape

    @property
    def device(self) -> torch.device:
        return self.matrix.device

    @property
    def dtype(self) -> torch.dtype:
        return self.matrix.dtype

    def squared_norms(self) -> Float64[Tensor, " n"]:
        norms, careful = self._norms
        norms = norms.clone()
        for i in self._places(careful):
            norms[i] = self.row(i).double().square().sum()
        return norms

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float64[Tensor, "*shape"]:
        # Samples that the norms could not bound get weight 0 in the fast sum and are added one by one.
        _, careful = self._norms
        plain = weights.masked_fill(careful, 0.0)
        total = self.matrix.weighted_sum(plain).double()
        self.table.add_weighted(total, plain)
        for i in self._places(careful & (weights != 0)):
            row = self.row(i)
            if self.device.type != "cpu":  # where nobody asked which weights are 0
                row = row.masked_fill(weights[i] == 0, 0.0)
            total += weights[i].double() * row
        return total

    def _places(self, rows: Bool[Tensor, " n"]) -> Sequence[int]:
        """Which rows are taken one by one. On a device all or none, so that the host need not wait for the answer."""
        if rows.device.type == "cpu":
            found: list[int] = rows.nonzero().flatten().tolist()
            return found
        return range(self.samples if self._one_by_one else 0)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self.table.dense() + self.matrix.dense()

    def scale(
        self,
        *,
        left: Float[Tensor, "v ..."] | None = None,
        right: Float[Tensor, "o ..."] | None = None,
    ) -> BlockGrads:
        table = self.table.scale(left=left, right=right)
        if not isinstance(table, IndexedGrad):
            return super().scale(left=left, right=right)
        return TiedGrad(table, self.matrix.scale(left=left, right=right))

    @cached_property
    def _norms(self) -> tuple[Float64[Tensor, " n"], Bool[Tensor, " n"]]:
        """Norms with their rounding bound, and the rows whose parts cancel: those are formed instead."""
        if self._one_by_one:
            # All rows are marked as careful, and the norms are placeholders: every one is replaced by that of a
            # formed row.
            everyone = torch.ones(self.samples, dtype=torch.bool, device=self.device)
            return everyone.double(), everyone
        first, second, positions = (
            self.table.squared_norms(),
            self.matrix.squared_norms(),
            self.matrix.a.shape[1],
        )
        lengths = self.matrix.lengths()
        # ‖E + M‖² = ‖E‖² + ‖M‖² + 2⟨E, M⟩ for an embedding E tied to an output matrix M. The three terms may cancel, so
        # the rounding of each enters a bound, and samples beyond it are formed.
        bound = slack(self.dtype, positions) * (4 * (first + second) + 2 * lengths * first.sqrt())
        squared = first + second + 2 * self._cross()
        if self.device.type != "cpu":
            # Norms large enough for the conditions below to hold, as for factors (`gram._bound_on_device`).
            least = torch.maximum(second / CANCELS**2, lengths.square() / longest(positions) ** 2)
            norms = torch.maximum(squared.clamp_min(0.0) + bound, least)
            return norms, torch.zeros_like(norms, dtype=torch.bool)
        within = (bound <= OVERCLIP * squared) & (second <= CANCELS**2 * squared)
        within &= lengths.square() <= longest(positions) ** 2 * squared
        return squared.clamp_min(0.0) + bound, ~within  # also where a norm is not a number

    def _cross(self) -> Float64[Tensor, " n"]:
        """Σ_m ⟨E's entry m, M's row id_m⟩, with M's row = Σ_s b_s[id_m] a_s."""
        if self.device.type != "cpu" and self.table.most is not None:
            return self._cross_at_once(self.table.most)
        ends = torch.bincount(self.table.owner, minlength=self.samples).cumsum(0).tolist()
        found = [
            self._cross_term(i, slice(begin, end)) for i, (begin, end) in enumerate(pairwise([0, *ends]))
        ]
        return torch.stack(found) if found else self.table.squared_norms()

    def _cross_at_once(self, most: int) -> Float64[Tensor, " n"]:
        """The same without asking a device how many entries each sample has: there is room for as many as may be."""
        ids, owner, values = self.table.ids, self.table.owner, self.table.values
        everyone = torch.arange(self.samples, device=self.device)
        place = torch.arange(len(owner), device=self.device) - torch.searchsorted(owner, everyone)[owner]
        # Copies of the last entry, whose values are zero, may find no room. They share a place of their own.
        place = place.clamp_max(most)
        there = (owner, place)
        ids = ids.new_zeros(self.samples, most + 1).index_put_(there, ids)
        values = values.new_zeros(self.samples, most + 1, values.shape[1]).index_put_(there, values)
        a, b = self.matrix.factors()
        selected = b.gather(2, ids[:, None].expand(-1, b.shape[1], -1))
        rows = torch.bmm(selected.transpose(1, 2), a)
        return (rows.double() * values).sum((1, 2))

    def _cross_term(self, i: int, mine: slice) -> Float64[Tensor, ""]:
        """Of one sample, whose entries lie side by side."""
        # Only rows of M that the sample's tokens select meet anything in E, which is zero elsewhere: a few rows
        # instead of the whole vocabulary.
        rows = self.matrix.b[i][:, self.table.ids[mine]].T @ self.matrix.a[i]
        return (rows.double() * self.table.values[mine]).sum()

    def row(self, i: int) -> Float[Tensor, "*shape"]:
        """The gradient of one sample, formed."""
        row = self.matrix.b[i].T @ self.matrix.a[i]
        mine = self.table.owner == i
        if self.device.type != "cpu":
            return row.index_add_(0, self.table.ids, self.table.values.masked_fill(~mine[:, None], 0.0))
        return row.index_add_(0, self.table.ids[mine], self.table.values[mine])

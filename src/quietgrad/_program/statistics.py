"""Statistics of all records, as rows that one record each decides, so that they clip and add up like gradients.

Formal guarantee: row i of a statistic is a function of record i and of what is public. It crosses the same two borders
as a gradient (a clip that bounds each row, noise on the sum), so zeroing out one record moves the sum by at most
`bound` whatever the record holds; a row that is not finite contributes exactly zero.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads


class Statistic(ABC):
    """A sum over all records, of one row from each record.

    Example:
        statistic: qg.Statistic = qg.Mean(length=2.0)
        rows = statistic.rows(features)
    """

    @property
    def bound(self) -> float:
        """The largest norm of a record's row; longer rows are clipped to it."""
        return 1.0

    @abstractmethod
    def rows(self, values: Tensor) -> PerSampleGrads:
        """Return each record's contribution as a row; nothing is clipped yet."""


@dataclass(frozen=True)
class Mean(Statistic):
    """Σ_i x_i / N; records longer than `bound` are clipped to it.

    Example:
        statistics = {"mean": qg.StatisticRelease(statistic=qg.Mean(), share=0.01)}
        program = qg.Program(training=mechanism, statistics=statistics)
    """

    length: float = 1.0

    @property
    def bound(self) -> float:
        return self.length

    def rows(self, values: Float[Tensor, "n d"]) -> PerSampleGrads:
        return _single("mean", DenseGrad(values))


@dataclass(frozen=True)
class SecondMoments(Statistic):
    """Σ_i u_i u_iᵀ / N of records of at most unit length: ‖uuᵀ‖_F = ‖u‖² ≤ 1.

    Example:
        statistics = {"second": qg.StatisticRelease(statistic=qg.SecondMoments(), share=0.1)}
        program = qg.Program(training=mechanism, statistics=statistics)
    """

    def rows(self, values: Float[Tensor, "n d"]) -> PerSampleGrads:
        factor = values[:, None, :]
        return _single("second", FactoredGrad(factor, factor, algorithm="outer"))


@dataclass(frozen=True)
class DiagonalMoments(Statistic):
    """Σ_i u_i² / N, coordinate by coordinate: ‖u²‖₂ ≤ ‖u‖² ≤ 1."""

    def rows(self, values: Float[Tensor, "n d"]) -> PerSampleGrads:
        return _single("diagonal", DenseGrad(values.square()))


@dataclass(frozen=True)
class KroneckerMoments(Statistic):
    """Second moments of the channels and of the positions of records [c, p] of at most unit length.

    A = Σ_i V_i V_iᵀ and B = Σ_i V_iᵀ V_i are two blocks of one row: ‖VVᵀ‖_F ≤ ‖V‖_F² ≤ 1 each, so √2 together.
    """

    @property
    def bound(self) -> float:
        return math.sqrt(2.0)

    def rows(self, values: Float[Tensor, "n c p"]) -> PerSampleGrads:
        channels, positions = values.transpose(1, 2), values
        blocks: dict[str, BlockGrads] = {
            "channels": FactoredGrad(channels, channels),
            "positions": FactoredGrad(positions, positions),
        }
        return BlockwiseGrads(blocks, len(values))


@dataclass(frozen=True)
class Counts(Statistic):
    """Σ_i onehot(label_i): the number of records of each label; a label outside 0 … classes − 1 counts nowhere."""

    classes: int

    def rows(self, values: Int64[Tensor, " n"]) -> PerSampleGrads:
        labels = torch.arange(self.classes, device=values.device)
        return _single("counts", DenseGrad((values[:, None] == labels).to(torch.float32)))


@dataclass(frozen=True)
class Histograms(Statistic):
    """The number of records in each bin of each column, for quantiles; a record is in one bin of each of d columns.

    Args:
        edges: public, ascending, the same for all columns; values outside fall into the first and the last bin.
        columns: d; a row has length √d at most.
    """

    edges: tuple[float, ...]
    columns: int

    @property
    def bound(self) -> float:
        return math.sqrt(self.columns)

    def rows(self, values: Float[Tensor, "n d"]) -> PerSampleGrads:
        inner = torch.tensor(self.edges[1:-1], dtype=values.dtype)
        bins = torch.bucketize(values.contiguous(), inner)
        hits = torch.nn.functional.one_hot(bins, len(self.edges) - 1).to(torch.float32)
        hits = torch.where(values.isnan()[..., None], 0.0, hits)
        return _single("bins", DenseGrad(hits.flatten(1)))

    def quantiles(
        self, released: Float[Tensor, " m"], levels: tuple[float, ...]
    ) -> Float[Tensor, "levels d"]:
        """Find the edge at which a column's released counts pass each level; post-processing.

        Args:
            released: the bins of one column after the other.
        """
        counts = released.view(self.columns, -1).clamp_min(0).double()
        passed = counts.cumsum(1) / counts.sum(1, keepdim=True).clamp_min(1e-12)
        upper = torch.tensor(self.edges[1:], dtype=torch.float64)
        found = [upper[(passed < level).sum(1).clamp_max(len(upper) - 1)] for level in levels]
        return torch.stack(found)

    def support(
        self, released: Float[Tensor, " m"], std: float
    ) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " d"]]:
        """Find the outer edges of the bins that stand out of the noise; the two middle bins where none does."""
        seen = released.view(self.columns, -1) > BEYOND_NOISE * std
        edges, bins = torch.tensor(self.edges, dtype=torch.float64), seen.shape[1]
        none = ~seen.any(1)
        first = torch.where(none, bins // 2 - 1, seen.int().argmax(1))
        last = torch.where(none, bins // 2, bins - 1 - seen.flip(1).int().argmax(1))
        return edges[first], edges[last + 1]


@dataclass(frozen=True)
class PooledHistogram(Histograms):
    """The parts of each record's columns in each bin, for columns of one unit that share their bounds.

    A record's row adds up to at most one over all bins, so it is at most one long: √d times less noise than in
    `Histograms`.
    """

    @property
    def bound(self) -> float:
        return 1.0

    def rows(self, values: Float[Tensor, "n d"]) -> PerSampleGrads:
        (hits,) = super().rows(values).dense().values()
        return _single("bins", DenseGrad(hits.view(len(values), self.columns, -1).mean(1)))

    def support(
        self, released: Float[Tensor, " m"], std: float
    ) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " d"]]:
        lower, upper = Histograms(self.edges, 1).support(released, std)
        return lower.expand(self.columns), upper.expand(self.columns)


BEYOND_NOISE = 4.0
"""Stds above which a bin counts as filled: of a thousand empty bins, one seems so in every thirty releases."""


def _single(name: str, block: BlockGrads) -> PerSampleGrads:
    return BlockwiseGrads({name: block}, block.samples)

"""What users contribute to a step: the rows of each become one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from quietgrad._capture.recorder import Pool
from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._privatizer.pooling import Pooling, pool
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad._sampling.users import Pooled


@dataclass(frozen=True)
class _Cut:
    """The part of one user's rows that lies in a micro-batch which does not hold them all."""

    rows: slice
    weight: float
    last: bool


class Contributions:
    """Turns the records of micro-batches into users.

    A user whose rows are all in one micro-batch is pooled there, factored or indexed as the layer has it. Of one that
    is cut, the sum so far is kept, as large as the model, until the last row has come.

    Args:
        pooled: whether a user's gradients are averaged or added.
    """

    def __init__(self, pooled: Pooled) -> None:
        self._pooled = pooled
        self._partial: Blocks = {}
        self._whole: list[BlockwiseGrads] = []
        self.remember()

    def begin(self) -> None:
        """Nothing is left of a step, also of one that was given up."""
        self._partial, self._whole = {}, []
        self.remember()

    def remember(self) -> None:
        """Remember what there is before a micro-batch."""
        self._before = dict(self._partial), list(self._whole)

    def undo(self) -> None:
        """Take back what was added since."""
        self._partial, self._whole = dict(self._before[0]), list(self._before[1])

    def single(self, counts: list[int], first: int, rows: int) -> bool:
        """Whether each of the rows first … first + rows of a step is a whole user."""
        pooling, cuts = arrange(counts, first, rows, self._pooled)
        return not cuts and pooling.keeps(rows)

    def pool(self, grads: BlockwiseGrads, counts: list[int], first: int = 0) -> BlockwiseGrads:
        """Return the users who are whole in these rows; others are kept for `finish`.

        Args:
            counts: the rows of every user of the step.
            first: the place in the step of the first of these rows.
        """
        pooling, cuts = arrange(counts, first, grads.samples, self._pooled)
        for cut in cuts:
            self._add(grads, cut)
        return pool(grads, pooling)

    def finish(self) -> Iterator[BlockwiseGrads]:
        """Those that were cut and are whole now, one at a time."""
        while self._whole:
            yield self._whole.pop()

    def _add(self, grads: BlockwiseGrads, cut: _Cut) -> None:
        weights = torch.zeros(grads.samples, dtype=torch.float64, device=grads.device)
        weights[cut.rows] = cut.weight
        for name, part in grads.weighted_sum(weights).items():
            self._partial[name] = self._partial[name] + part if name in self._partial else part.double()
        if cut.last:
            space = grads.space
            rows = {
                name: DenseGrad(part[None].to(space.part(name).dtype)) for name, part in self._partial.items()
            }
            self._whole.append(BlockwiseGrads(rows, 1))
            self._partial = {}


class Units:
    """Users as what a step protects: the records of each become one row.

    Args:
        sampler: says how many records each user of a step has.
    """

    def __init__(self, sampler: PoissonSampler) -> None:
        assert sampler.users is not None, "records are units as they are"
        self._sampler, self._contributions = sampler, Contributions(sampler.users.pooled)

    def begin(self) -> None:
        """Drop what is left of a user whose rows were cut."""
        self._contributions.begin()

    def begin_micro_batch(self, *, repeated: bool) -> None:
        """Remember what there is, or take back what the same micro-batch added before."""
        if repeated:
            self._contributions.undo()
        else:
            self._contributions.remember()

    def pooling(self, step: int, first: int, rows: int) -> Pool | None:
        """Return what makes users of these rows; None where each row is all that its user has."""
        counts = self._sampler.counts(step)  # None before the draw
        if counts is None or self._contributions.single(counts, first, rows):
            return None
        return lambda records: self._contributions.pool(records, counts, first)

    def pool(
        self, grads: BlockwiseGrads, step: int, first: int, counts: list[int] | None = None
    ) -> BlockwiseGrads:
        """Return the gradients of users.

        Args:
            counts: how many records each user has; those of the draw if left out.
        """
        counts = self._sampler.counts(step) if counts is None else counts
        return grads if counts is None else self._contributions.pool(grads, counts, first)

    def finish(self) -> Iterator[BlockwiseGrads]:
        """Yield users that were cut between micro-batches and are whole now."""
        return self._contributions.finish()


def arrange(counts: list[int], first: int, rows: int, pooled: Pooled) -> tuple[Pooling, list[_Cut]]:
    """Return who is whole in rows first … first + rows of a step, and who is cut, at either end."""
    sizes = np.asarray(counts, dtype=np.int64)
    weights = np.ones(len(sizes)) if pooled == "sum" else 1.0 / sizes
    stops = np.cumsum(sizes) - first
    starts = stops - sizes
    whole = (starts >= 0) & (stops <= rows)
    cuts = [
        _Cut(slice(max(starts[i], 0), min(stops[i], rows)), weights[i], bool(stops[i] <= rows))
        for i in np.flatnonzero((stops > 0) & (starts < rows) & ~whole).tolist()
    ]
    begin = int(starts[whole][0]) if whole.any() else 0
    return Pooling(sizes[whole], weights[whole], begin), cuts

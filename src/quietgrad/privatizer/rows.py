"""The rows of a step: each drawn row goes through `backward` exactly once; those of a person become one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from quietgrad.gradients.blocks import Blocks, DenseGrad
from quietgrad.gradients.pooling import Pooling
from quietgrad.gradients.stages import BlockwiseGrads
from quietgrad.sampling.batches import PoissonBatches
from quietgrad.sampling.people import Pooled
from quietgrad.sampling.poisson import PoissonSampler


class RowCount:
    """Compares the rows passed to `backward` with the rows drawn.

    A row passed twice would have twice the sensitivity. With PoissonBatches each micro-batch is followed on its own;
    with a DataLoader the rows of a step are counted.
    """

    def __init__(self, sampler: PoissonSampler, batches: PoissonBatches | None) -> None:
        self._sampler, self._batches = sampler, batches
        self._seen = 0
        sampler.claim(self)
        self._loop = sampler.loops

    def begun_again(self) -> bool:
        """Whether a loop was left within this step, so that its draw is handed out again and counts from the start."""
        again, self._loop = self._seen > 0 and self._loop != self._sampler.loops, self._sampler.loops
        if again:
            self._seen = 0
        return again

    def consume(self, step: int, rows: int) -> int:
        """Account for one micro-batch, before anything is computed from it; the place of its first row in the draw."""
        drawn = self._drawn(step)
        self._consume_micro_batch(rows)
        if self._seen + rows > drawn:
            raise ValueError(
                f"Got {self._seen + rows} rows in this step, but only {drawn} were drawn. Pass each micro-batch to "
                "backward once, one loss per row, and call release() before the next batch."
            )
        self._seen += rows
        return self._seen - rows

    def finish(self, step: int) -> None:
        """Before the release: all drawn rows were seen."""
        drawn = self._drawn(step)
        if self._seen != drawn:
            raise ValueError(
                f"release() after {self._seen} of the {drawn} drawn rows. Pass every micro-batch of the batch through "
                "backward first."
            )

    def next_step(self, step: int) -> None:
        """After the release of a step."""
        self._seen = 0
        self._sampler.released(step)
        if self._batches is not None:
            self._batches.current = None

    def detach(self) -> None:
        """Let another Privatizer have the sampler."""
        self._sampler.let_go(self)

    def _drawn(self, step: int) -> int:
        drawn = self._sampler.rows(step)
        if drawn is None:
            raise ValueError(
                "No batch was drawn for this step. Iterate over the batches given to the Privatizer, and call "
                "release() once per batch."
            )
        return drawn

    def _consume_micro_batch(self, rows: int) -> None:
        batch = self._batches.current if self._batches is not None else None
        if batch is None:
            return
        if rows != batch.outstanding:
            twice = "no micro-batch is waiting: was it passed twice? Several losses of a row: add them row by row first"
            detail = "rows differ" if batch.outstanding else twice
            raise ValueError(
                f"Got {rows} losses where {batch.outstanding} rows of the micro-batch are expected ({detail}). "
                "Take micro-batches from batch.split(size) and pass one loss per row, once."
            )
        batch.outstanding = 0


@dataclass(frozen=True)
class _Cut:
    """The part of one person's rows that lies in a micro-batch which does not hold them all."""

    rows: slice
    weight: float
    last: bool


class Contributions:
    """Turns the records of micro-batches into people.

    A person whose rows are all in one micro-batch is pooled there, factored or indexed as the layer has it. Of one that
    is cut, the sum so far is kept, as large as the model, until the last row has come.

    Args:
        pooled: whether a person's gradients are averaged or added.
    """

    def __init__(self, pooled: Pooled) -> None:
        self._pooled = pooled
        self._partial: Blocks = {}
        self._whole: list[BlockwiseGrads] = []

    def begin(self) -> None:
        """Nothing is left of a step, also of one that was given up."""
        self._partial, self._whole = {}, []

    def single(self, counts: list[int], first: int, rows: int) -> bool:
        """Whether each of the rows first … first + rows of a step is a whole person."""
        pooling, cuts = arrange(counts, first, rows, self._pooled)
        return not cuts and pooling.keeps(rows)

    def pool(self, grads: BlockwiseGrads, counts: list[int], first: int = 0) -> BlockwiseGrads:
        """The people who are whole in these rows; others are kept for `finished`.

        Args:
            counts: the rows of every person of the step.
            first: the place in the step of the first of these rows.
        """
        pooling, cuts = arrange(counts, first, grads.samples, self._pooled)
        for cut in cuts:
            self._add(grads, cut)
        return grads.pooled(pooling)

    def finished(self) -> Iterator[BlockwiseGrads]:
        """Those that were cut and are whole now, one at a time."""
        while self._whole:
            yield self._whole.pop()

    def _add(self, grads: BlockwiseGrads, cut: _Cut) -> None:
        weights = torch.zeros(grads.samples, dtype=torch.float64, device=grads.device)
        weights[cut.rows] = cut.weight
        for name, part in grads.weighted_sum(weights).items():
            self._partial[name] = self._partial[name] + part if name in self._partial else part.double()
        if cut.last:
            dtypes = grads.dtypes
            rows = {name: DenseGrad(part[None].to(dtypes[name])) for name, part in self._partial.items()}
            self._whole.append(BlockwiseGrads(rows, 1))
            self._partial = {}


def arrange(counts: list[int], first: int, rows: int, pooled: Pooled) -> tuple[Pooling, list[_Cut]]:
    """Who is whole in rows first … first + rows of a step, and who is cut, at either end."""
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

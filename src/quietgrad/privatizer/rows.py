"""The rows of a step: each drawn row goes through `backward` exactly once, or ε would be wrong."""

from __future__ import annotations

from quietgrad.sampling.batches import PoissonBatches
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

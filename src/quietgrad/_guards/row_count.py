"""Each drawn row goes through `backward` exactly once."""

from __future__ import annotations

import torch
from torch import Tensor

from quietgrad._errors import PrivacyError
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler


class RowCount:
    """Compare the rows passed to `backward` with the rows drawn.

    A row passed twice would have twice the sensitivity. With PoissonBatches each micro-batch is counted on its own;
    with a DataLoader the rows of a step are. How many were drawn is private, so no error states it.

    Checked by: tests/privatizer/test_privatizer.py, tests/sampling/test_loops.py,
    tests/attacks/test_counted_errors.py
    """

    def __init__(self, sampler: PoissonSampler, batches: PoissonBatches | None) -> None:
        self._sampler, self._batches = sampler, batches
        self._seen = 0
        sampler.claim(self)
        self._loop = sampler.loops

    def begun_again(self) -> bool:
        """Whether a loop was left within this step: its draw is handed out again and counts from the start."""
        again, self._loop = self._seen > 0 and self._loop != self._sampler.loops, self._sampler.loops
        if again:
            self._seen = 0
        return again

    def consume(self, step: int, rows: int) -> int:
        """Count a micro-batch before anything is computed from it; return the place of its first row in the draw."""
        drawn = self._drawn(step)
        rows -= self._consume_micro_batch(rows)
        if self._seen + rows > drawn:
            raise PrivacyError(
                "Got more rows in this step than were drawn. Pass each micro-batch to backward once, one loss per "
                "row, and call release() before the next batch."
            )
        self._seen += rows
        return self._seen - rows

    def without_padding(self, losses: Tensor, step: int, first: int) -> Tensor:
        """Take out the rows that only fill a batch up: a gradient of zero adds nothing to any sum.

        Args:
            losses: of the rows `first` and after in the draw.
            step: of the run.
            first: as `consume` returned it.
        """
        used = self._sampler.used(step)
        if used is None:
            return losses
        places = torch.arange(first, first + len(losses), device=losses.device)
        counts = (places < used).to(losses.dtype)
        return losses * counts.view(-1, *[1] * (losses.dim() - 1))

    def finish(self, step: int) -> None:
        """Refuse a release before all drawn rows were passed."""
        drawn = self._drawn(step)
        if self._seen != drawn:
            raise ValueError(
                "release() before all drawn rows were seen. Pass every micro-batch of the batch through backward first."
            )

    def next_step(self, step: int) -> None:
        """Begin to count for the next step, after a release."""
        self._seen = 0
        self._sampler.mark_released(step)
        if self._batches is not None:
            if self._batches.current is not None:
                self._batches.current.released = True
            self._batches.current = None

    def detach(self) -> None:
        """Let another Privatizer have the sampler."""
        self._sampler.let_go(self)

    def _drawn(self, step: int) -> int:
        drawn = self._sampler.rows(step)
        if drawn is None:
            raise PrivacyError(
                "No batch was drawn for this step. Iterate over the batches given to the Privatizer, and call "
                "release() once per batch."
            )
        return drawn

    def consume_question(self, rows: int) -> None:
        """Take the losses of a micro-batch that only asks: its rows do not count."""
        self._consume_micro_batch(rows)

    @property
    def stand_ins(self) -> int:
        """How many rows at the end of the micro-batch that is handed out only keep other ranks from waiting."""
        batch = self._batches.current if self._batches is not None else None
        return 0 if batch is None else batch.stand_ins

    def _consume_micro_batch(self, rows: int) -> int:
        """Take the losses of the micro-batch that is handed out; return how many of its rows are stand-ins."""
        batch = self._batches.current if self._batches is not None else None
        if batch is None:
            return 0
        if rows != batch.outstanding:
            twice = "no micro-batch is waiting: was it passed twice? Several losses of a row: add them row by row first"
            other = "more" if rows > batch.outstanding else "fewer"
            detail = f"{other} losses than rows" if batch.outstanding else twice
            raise PrivacyError(
                f"The losses are not those of the micro-batch: {detail}. Take micro-batches from "
                "batch.split(size) and pass one loss per row, once."
            )
        batch.outstanding = 0
        return batch.stand_ins

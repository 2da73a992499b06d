"""From the losses of a micro-batch to the per-sample gradients that a step adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._guards.row_count import RowCount
from quietgrad._independence.in_loop import LoopCheck
from quietgrad._independence.sketches import Sketch
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.contributions import Units
from quietgrad._representations.base import Identity

PoolFrom = Callable[[BlockwiseGrads, int], BlockwiseGrads]
"""Makes users of records, given the place of the first of them in the draw."""


class Intake:
    """Take micro-batches: count their rows, capture their gradients, keep the last one back.

    A micro-batch is kept back while the loop is asked about it. It is added when the next one comes, or at the release.

    Args:
        recorder: captures per-sample gradients.
        rows: counts the rows of the draw.
        users: makes one row of each user's records; None where records are protected.
        check: asks the loop whether records influence each other.
        mechanism: says which releases are made of them.
        is_watched: whether observers may read them.
    """

    def __init__(
        self,
        recorder: Recorder,
        rows: RowCount,
        users: Units | None,
        check: LoopCheck,
        mechanism: Mechanism,
        *,
        is_watched: bool,
    ) -> None:
        self._recorder, self._rows, self._users, self._check = recorder, rows, users, check
        self._sums = len(mechanism.releases)
        # Without a representation nobody asks for more than norms and sums, so factors need not be kept.
        self._keep_factors = is_watched or not all(
            isinstance(release.representation, Identity) for release in mechanism.releases
        )
        self._first = 0
        """The place in the draw of the first row of the last micro-batch."""
        self._stand_ins = 0
        """How many rows of it, at the end, only keep other ranks from waiting."""
        self._pending: BlockwiseGrads | None = None
        """The rows of the last micro-batch, until they are added."""

    @property
    def is_pending(self) -> bool:
        """Whether a micro-batch was kept back."""
        return self._pending is not None

    def answer(self, losses: Tensor) -> None:
        """Take fingerprints of a micro-batch that only asks; nothing of it reaches a sum."""
        self._rows.consume_question(len(losses))
        sketch = self._check.begin_sketch()
        visit = None if sketch is None else sketch.add
        grads = self._recorder.collect(losses, keep_factors=False, visit=visit)
        self._take_fingerprints(losses, grads, sketch)

    def count(self, losses: Tensor, step: int) -> Tensor:
        """Count the rows of a micro-batch; return its losses, zero for rows that add nothing."""
        if self._check.is_repeating:
            self._rows.consume_question(len(losses))
            losses = self._check.leave_out_bad(losses)
            self._stand_ins = 0
        else:
            self._first = self._rows.consume(step, len(losses))
            self._stand_ins = self._rows.stand_ins
        return self._rows.without_padding(losses, step, self._first)

    def capture(self, losses: Tensor, step: int, pool: PoolFrom) -> bool:
        """Capture the gradients of the micro-batch that was counted, and keep them back.

        Returns:
            whether the loop is asked about it before it may be added.
        """
        first = self._first
        pooling = None
        if self._users is not None:
            self._users.begin_micro_batch(repeated=self._check.is_repeating)
            pooling = self._users.pooling(step, first, len(losses))
        # A micro-batch that is asked about is compared with itself as it was added, which spares a pass.
        compared = self._check.takes_fingerprints and pooling is None and self._stand_ins == 0
        sketch = self._check.begin_sketch() if compared else None
        grads = self._recorder.collect(
            losses,
            None if pooling is None else lambda records: pool(records, first),
            keep_factors=self._keep_factors,
            stand_ins=self._stand_ins,
            visit=None if sketch is None else sketch.add,
        )
        self._take_fingerprints(losses, grads, sketch)
        self._pending = grads if self._keep_factors or self._sums > 1 else grads.drop_factors()
        own = losses[: len(losses) - self._stand_ins]
        return self._check.suspect(own, spread=self._recorder.met_not_finite)

    def take(self) -> Iterator[BlockwiseGrads]:
        """Hand over what was kept back: its rows, then users who were cut and are whole now."""
        grads, self._pending = self._pending, None
        if grads is not None:
            yield grads
            if self._users is not None:
                yield from self._users.finish()

    def drop(self) -> None:
        """Drop what was kept back, also of a user whose rows were cut."""
        self._pending = None
        if self._users is not None:
            self._users.begin()

    def _take_fingerprints(self, losses: Tensor, grads: BlockwiseGrads, sketch: Sketch | None) -> None:
        recorder = self._recorder
        self._check.answer(losses, grads, sketch, recorder.precision, spread=recorder.met_not_finite)

"""Keep back a micro-batch that holds numbers which are not finite, and hand it out again without its bad records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._independence.answers import LoopAnswers, Start
from quietgrad._independence.bad_records import find_bad_records, leave_out
from quietgrad._independence.buffers import Buffers
from quietgrad._independence.random_states import RandomStateReader, RandomStates


class Repetition:
    """What has to be known of the last micro-batch, so that it can be repeated as it was.

    Args:
        model: whose buffers are put back.
        answers: asks the loop.
    """

    def __init__(self, model: nn.Module, answers: LoopAnswers) -> None:
        self._model, self._answers = model, answers
        self._start: Start | None = None
        """Where the last micro-batch began: handed out again, it must meet the same random numbers."""
        self._reader = RandomStateReader()
        self._suspects: Tensor | None = None
        """Which records of the last micro-batch may not be finite; None if all are."""
        self._has_spread = False
        """Whether a number of them that is not finite may have reached the rows of others."""
        self._bad: Tensor | None = None
        """While a micro-batch is handed out again: whose places hold other records, and add nothing."""

    def begin(self, records: int) -> Start | None:
        """Remember the state of everything before a micro-batch of so many records is collated; None of one record."""
        self._start = Start(self._reader.read(), Buffers(self._model)) if records > 1 else None
        return self._start

    @property
    def is_in_progress(self) -> bool:
        """Whether the micro-batch under way is the last one again, with other records in the place of bad ones."""
        return self._bad is not None

    def leave_out_bad(self, losses: Tensor) -> Tensor:
        """Make the losses in the places of bad records NaN."""
        return losses if self._bad is None else leave_out(losses, self._bad)

    @property
    def is_due(self) -> bool:
        """Whether some records of the last micro-batch may not be finite."""
        return self._suspects is not None

    def suspect(self, losses: Tensor, *, spread: bool) -> bool:
        """Return whether some records of a micro-batch may not be finite.

        Args:
            losses: of the micro-batch.
            spread: whether a number that is not finite may have reached the rows of others.
        """
        self._suspects, self._has_spread = None, spread
        if self.is_in_progress or len(losses) < 2:
            return False
        # A device is not asked about its losses, because the host would wait. There only `spread` shows them. A sum is
        # finite only if all losses are, and takes one operation where asking each of them takes two.
        own = losses.detach()
        if own.device.type == "cpu" and not math.isfinite(own.sum().item()):
            self._suspects = ~own.isfinite().reshape(len(own), -1).all(1)
            self._suspects = self._suspects if bool(self._suspects.any()) else None
        if self._suspects is None and spread:
            self._suspects = torch.ones(len(losses), dtype=torch.bool)
        return self.is_due

    def hand_out_again(
        self, records: Sequence[Any], collate: Callable[[Sequence[Any]], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Find the bad records of the last micro-batch; if others may have suffered from them, repeat it without them.

        Yields:
            the number of rows of each micro-batch for the loop, and the micro-batch.
        """
        suspects, self._suspects = self._suspects, None
        assert suspects is not None
        assert self._start is not None, "a micro-batch of several records has begun"
        start, after, buffers = self._start, RandomStates.capture(), Buffers(self._model)
        try:
            found = yield from self._answers.of(find_bad_records(records, suspects), collate, *start)
            self._answers.end()
            if found is None or found.records is None or not found.places:
                return
            # Where exactly the bad records were not finite, and they are all that was not, nobody else has suffered.
            if not self._has_spread and found.places == suspects.nonzero()[:, 0].tolist():
                return
            self._bad = torch.zeros(len(records), dtype=torch.bool)
            self._bad[found.places] = True
            start.states.restore()
            start.buffers.restore()
            yield len(records), collate(found.records)
        finally:
            # What follows meets the random numbers that it would have met without a bad record.
            self._bad = None
            self._answers.end()
            after.restore()
            buffers.restore()

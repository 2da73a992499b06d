"""One Poisson draw, handed out in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from quietgrad._collective import Reducer
from quietgrad._errors import PrivacyError


@runtime_checkable
class MicroBatchCheck(Protocol):
    """Ask about a micro-batch, by handing out more of them; see `_independence.in_loop`."""

    def collate(self, records: Sequence[Any], collate: Callable[[Sequence[Any]], Any]) -> Any:
        """Collate a micro-batch that is about to be handed out."""

    def begin(self, records: int) -> None:
        """Remember the state of everything before a micro-batch of so many records is collated."""

    def questions(
        self,
        records: Sequence[Any],
        others: Callable[[int], list[Any]],
        collate: Callable[[Sequence[Any]], Any],
        size: int,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number of rows of each further micro-batch, and the micro-batch."""

    def accompany(self) -> AbstractContextManager[None]:
        """Hand out stand-ins inside, while other ranks ask: nothing of them is added."""

    def end_questions(self) -> None:
        """Take notice that all ranks have asked about the micro-batch: now they may add it together."""


Collate = Callable[[Sequence[Any]], Any]
"""Makes a micro-batch of some records."""

MicroBatch = tuple[Sequence[Any], Collate]
"""The records of a micro-batch, and what collates them."""

Rows = tuple[Any, int, int]
"""A collated micro-batch, its number of rows, and how many of these, at the end, are stand-ins."""

LEAST = 2
"""Rows of a micro-batch where ranks run in lockstep. A single row would take another path through the engine."""


class CollatedPart(NamedTuple):
    """Hold the records of a micro-batch, what collates them, and what came of it."""

    records: Sequence[Any]
    collate: Collate
    rows: Rows


class Batch:
    """The records of one Poisson draw; split into micro-batches as memory allows.

    Args:
        records: of the draw, or what stands for them.
        collate: makes a micro-batch of some of them.
        others: draws so many records of the whole data set; None where nothing is to be asked.
        counts: the number of rows of each user; None where records are protected.
        groups: the records again, as groups that share no micro-batch, each with what collates it; one group if left
            out.

    Example:
        batch = next(iter(batches))  # may be empty
        micro = [len(x) for x, y in batch.split(8)]
    """

    def __init__(
        self,
        records: Sequence[Any],
        collate: Collate,
        others: Callable[[int], list[Any]] | None = None,
        counts: list[int] | None = None,
        groups: Sequence[MicroBatch] | None = None,
    ) -> None:
        self._records, self._others, self._counts = records, others, counts
        self._groups = [(records, collate)] if groups is None else groups
        self.outstanding = 0
        """Rows of the micro-batch that was handed out and has not gone through `backward` yet."""
        self.owned = False
        self.released = False
        self.stand_ins = 0
        """How many of these rows, at the end, are stand-ins: they are computed and do not count."""
        self.handed_out: Callable[[Any], None] | None = None
        self.check: MicroBatchCheck | None = None
        self.lockstep: Reducer | None = None
        """The ranks that must be handed equally many micro-batches."""

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> NoReturn:
        """Refuse `for x, y in batches`: a draw may be empty, and then has no x and y.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "A batch is one Poisson draw, which may be empty or large. Take its micro-batches: "
            "`for batch in batches:`, inside it `for x, y in batch.split(256):`, and after that inner loop "
            "`private.release()`."
        )

    def split(self, size: int) -> Iterator[Any]:
        """Yield micro-batches of at most `size` rows, as the data set collates them; none for an empty batch.

        A user's rows stay together where they fit; whether they do changes nothing in what is released. Under a
        Privatizer some micro-batches are followed by others, by which it checks that records do not influence each
        other. Pass them to `backward` like all others: nothing of them is added.
        """
        if size < 1:
            raise ValueError(f"Expected a micro-batch size >= 1, got {size}.")
        if self.lockstep is not None:
            yield from self._split_together(size, self.lockstep)
            return
        for records, collate in self._micro_batches(size):
            self._refuse_outstanding()
            made = self.check.collate(records, collate) if self.check and self._others else collate(records)
            yield self._hand_out(made, len(records))
            # A loop that releases inside of this loop has a model of other weights by now: it cannot be asked.
            if self.check and self._others and not self.outstanding and not self.released:
                for rows, micro_batch in self.check.questions(records, self._others, collate, size):
                    yield self._hand_out(micro_batch, rows)

    def _split_together(self, size: int, ranks: Reducer) -> Iterator[Any]:
        """Hand out equally many micro-batches on all ranks, then equally many questions about each.

        Before each one the ranks say whether they have any left. While one of them has, the others get stand-ins: rows
        of which nothing is added. Two ranks can so never wait for different things.

        Checked by: tests/distributed/test_lockstep.py
        """
        own = self._micro_batches(size)
        while True:
            part, anybody = ranks.make_together(lambda: self._next_part(own))
            if not anybody:
                return
            yield self._hand_out(*(part.rows if part is not None else self._stand_ins()))
            asking = self._questions(part, size)
            while True:
                question, anybody = ranks.make_together(lambda: next(asking, None))  # noqa: B023 (called at once)
                if not anybody:
                    break
                if question is not None:
                    yield self._hand_out(question[1], question[0])
                elif self.check is not None:
                    with self.check.accompany():
                        yield self._hand_out(*self._stand_ins())
            if self.check is not None:
                self.check.end_questions()

    def _next_part(self, parts: Iterator[MicroBatch]) -> CollatedPart | None:
        self._refuse_outstanding()
        part = next(parts, None)
        if part is not None and self.check is not None:
            self.check.begin(len(part[0]))
        return None if part is None else CollatedPart(*part, self._padded(*part))

    def _stand_ins(self) -> Rows:
        return self._padded((), self._groups[-1][1])

    def _padded(self, records: Sequence[Any], collate: Collate) -> Rows:
        """Collate the records with as many stand-ins as are missing."""
        missing = max(0, LEAST - len(records))
        assert self._others is not None, "batches of a data set can draw stand-ins"
        padded = [*records, *self._others(missing)] if missing else records
        return collate(padded), len(padded), missing

    def _questions(self, part: CollatedPart | None, size: int) -> Iterator[tuple[int, Any]]:
        if self.check is None or self._others is None or self.released:
            return
        self._refuse_outstanding()
        records, collate = ((), self._groups[-1][1]) if part is None else (part.records, part.collate)
        yield from self.check.questions(records, self._others, collate, size)

    def _micro_batches(self, size: int) -> Iterator[MicroBatch]:
        for records, collate in self._groups:
            for start, stop in _parts(len(records) if self._counts is None else self._counts, size):
                yield records[start:stop], collate

    def _refuse_outstanding(self) -> None:
        if self.owned and self.outstanding:
            raise PrivacyError(
                "The last micro-batch has not gone through private.backward(losses) yet. Pass each one before "
                "taking the next: its rows count exactly once."
            )

    def _hand_out(self, micro_batch: Any, rows: int, stand_ins: int = 0) -> Any:
        self.outstanding, self.stand_ins = rows, stand_ins
        if self.handed_out is not None:
            self.handed_out(micro_batch)
        return micro_batch


def _parts(counts: int | list[int], size: int) -> Iterator[tuple[int, int]]:
    """Return (first row, row after the last) of micro-batches, cut through a user only who has too many rows.

    Args:
        counts: the number of rows, or of each user's rows.
    """
    if isinstance(counts, int):
        yield from ((start, min(start + size, counts)) for start in range(0, counts, size))
        return
    start = stop = 0
    for count in counts:
        if stop > start and stop + count - start > size:
            yield start, stop
            start = stop
        stop += count
        while stop - start > size:
            yield start, start + size
            start += size
    if stop > start:
        yield start, stop

"""The records of Poisson draws, taken from a data set and handed out in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, NoReturn, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from quietgrad._collective import Reducer
from quietgrad._errors import PrivacyError
from quietgrad._kernels.transfer import upload
from quietgrad._sampling.collate import MapStyle, keeps_order, move
from quietgrad._sampling.padding import PadCollate, PadTo, collating, stack
from quietgrad._sampling.poisson import PoissonSampler, ReplayedSampler
from quietgrad._sampling.users import Ids, Pooled
from quietgrad.accounting.base import Event
from quietgrad.accounting.planning import Charge


@runtime_checkable
class MicroBatchCheck(Protocol):
    """Ask about a micro-batch, by handing out more of them; see `_independence.in_loop`."""

    def collate(self, records: Sequence[Any], collate: Callable[[Sequence[Any]], Any]) -> Any:
        """Collate a micro-batch that is about to be handed out."""

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
    """The records of a micro-batch, what collates them, and what came of it."""

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
        """Micro-batches of at most `size` rows, as the data set collates them; none for an empty batch.

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


class PoissonBatches:
    """Poisson draws from a map-style data set, to iterate over.

        for batch in batches:
            for x, y in batch.split(256): ...

    Args:
        dataset: any map-style data set; a TensorDataset takes a fast path.
        rate: q, the probability of each record.
        steps: how many batches in all; the privacy budget is planned for exactly these.
        seed: reproducible draws, not private; leave it out for OS entropy.
        workers: processes that load records ahead.
        collate_fn: makes a micro-batch of a list of records, as a DataLoader's does (padding, dictionaries); it is
            never given an empty list. With `unit` it must keep the order of the records.
        pad_to: the length to which records of unequal length are padded or cut; several lengths for public length
            classes. "longest" pads to the longest record of each micro-batch, or states that `collate_fn` does:
            that length is data, and `explain()` says so. See `pad_collate` for masks and other padding values.
        unit: the user of each record, where users are protected instead of records; see `PoissonSampler`.
        most_records: with `unit`, how many records of a user a step uses at most, drawn afresh.
        pooled: with `unit`, whether the gradients of a user's records are averaged ("mean") or added ("sum").
        groups: b, for noise of b bands; see `PoissonSampler`.
        at_most: B, the rows of every batch: some records of larger draws are left out, smaller ones are filled up with
            rows that count nothing. Compiled models see one shape; see `PoissonSampler`.
        once_an_epoch: each record takes part exactly once in 1/q steps, at a random one; see `PoissonSampler`.
        device: where micro-batches are handed out; where the data set has them if left out.

    Raises:
        ValueError: an argument is outside its range, or `pad_to` and `collate_fn` both pad.

    Example:
        batches = qg.PoissonBatches(train_set, rate=0.25, steps=10)
        x, y = next(next(iter(batches)).split(64))
    """

    def __init__(
        self,
        dataset: MapStyle,
        *,
        rate: float,
        steps: int,
        seed: int | None = None,
        workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        pad_to: PadTo | None = None,
        unit: Ids | None = None,
        most_records: int | None = None,
        pooled: Pooled = "mean",
        groups: int = 1,
        at_most: int | None = None,
        once_an_epoch: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self.device = None if device is None else torch.device(device)
        self.dataset, self.workers = dataset, workers
        self.padding, self.collate_fn = collating(pad_to, collate_fn)
        if unit is not None and len(self.padding.lengths) > 1:
            raise ValueError(
                f"pad_to={pad_to!r} sorts a draw by length, and unit= keeps the records of a user together. Pass one "
                "length."
            )
        if at_most is not None and len(self.padding.lengths) > 1:
            raise ValueError(
                f"pad_to={pad_to!r} sorts a draw by length, and at_most= gives all batches one shape. Pass one length."
            )
        records = len(dataset)  # type: ignore[arg-type]
        self.sampler = PoissonSampler(
            records,
            rate=rate,
            steps=steps,
            seed=seed,
            unit=unit,
            most_records=most_records,
            pooled=pooled,
            groups=groups,
            at_most=at_most,
            once_an_epoch=once_an_epoch,
        )
        self._options = {"groups": groups, "at_most": at_most, "once_an_epoch": once_an_epoch}
        self.current: Batch | None = None
        """The batch that was handed out and is not released yet."""
        self._handed_out: Callable[[Any], None] | None = None
        self._check: MicroBatchCheck | None = None
        self._lockstep: Reducer | None = None
        self._in_order = False

    @classmethod
    def replay(
        cls, dataset: MapStyle, draws: Sequence[Sequence[int]], *, rate: float, **unit: Any
    ) -> PoissonBatches:
        """Batches with explicit draws (of users, given `unit`), for audits; marked not private."""
        batches = cls(dataset, rate=rate, steps=len(draws), **unit)
        sampler = batches.sampler
        batches.sampler = ReplayedSampler(
            sampler.records, draws, rate=rate, users=sampler.users, **batches._options
        )
        return batches

    @property
    def units(self) -> int:
        """N: how many records, or users, may be drawn."""
        return self.sampler.units

    @property
    def rate(self) -> float:
        return self.sampler.rate

    @property
    def steps(self) -> int:
        return self.sampler.steps

    def charge(self, event: Event, step: int) -> Charge:
        """Say what a step costs that releases this."""
        return self.sampler.charge(event, step)

    def watch(
        self,
        handed_out: Callable[[Any], None] | None,
        check: MicroBatchCheck | None = None,
        lockstep: Reducer | None = None,
    ) -> None:
        """Call `handed_out` with each micro-batch just before the loop gets it, and let `check` ask about some.

        Args:
            lockstep: the ranks that must be handed equally many micro-batches.
        """
        self._handed_out, self._check, self._lockstep = handed_out, check, lockstep

    def __len__(self) -> int:
        """What the plan holds."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Batch]:
        self.current = None  # a batch that a loop left behind is handed out again
        loaded = self._tensor_batches() if self._plain_tensors() else self._collated_batches()
        while True:
            self._refuse_unreleased()
            batch = next(loaded, None)
            if batch is None:
                return
            batch.owned = self.sampler.owned
            batch.handed_out, batch.check, batch.lockstep = self._handed_out, self._check, self._lockstep
            self.current = batch
            yield batch

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no batch under way."""
        return self.__dict__ | {"current": None, "_handed_out": None, "_check": None, "_lockstep": None}

    def _refuse_unreleased(self) -> None:
        if self.sampler.owned and self.current is not None:
            raise PrivacyError(
                "The last batch was not released. Call private.release() before taking the next batch."
            )

    def _plain_tensors(self) -> bool:
        # A subclass may override __getitem__ (augmentation), so only the class itself is known to be plain indexing.
        return type(self.dataset) is TensorDataset and self.collate_fn is default_collate

    def _tensor_batches(self) -> Iterator[Batch]:
        tensors: tuple[Tensor, ...] = self.dataset.tensors  # type: ignore[attr-defined]

        def collate(rows: Sequence[Any]) -> list[Tensor]:
            chosen = torch.as_tensor(rows, dtype=torch.long)
            found = [tensor.index_select(0, upload(chosen, tensor.device)) for tensor in tensors]
            return found if self.device is None else [upload(tensor, self.device) for tensor in found]

        for step, indices in self._numbered(self.sampler):
            yield Batch(indices, collate, self._other_rows, self.sampler.counts(step))

    def _other_rows(self, count: int) -> list[int]:
        # OS entropy: the states of all generators that users know are put back while a loop is asked.
        rows: list[int] = np.random.default_rng().integers(self.sampler.records, size=count).tolist()
        return rows

    def _collated_batches(self) -> Iterator[Batch]:
        loader: DataLoader[Any] = DataLoader(
            self.dataset,  # type: ignore[arg-type]  # any map-style data set does
            batch_sampler=self.sampler,
            collate_fn=_as_list,
            num_workers=self.workers,
        )
        classes = self.collate_fn if len(self.padding.lengths) > 1 else None
        for step, records in self._numbered(loader):
            groups = classes.groups(records) if isinstance(classes, PadCollate) else None
            yield Batch(records, self._collate, self._other_records, self.sampler.counts(step), groups)

    def _other_records(self, count: int) -> list[Any]:
        return [self.dataset[row] for row in self._other_rows(count)]

    def _collate(self, some: Sequence[Any]) -> Any:
        records = list(some)
        batch = stack(records) if self.collate_fn is default_collate else self.collate_fn(records)
        if self.sampler.users is not None and self.collate_fn is not default_collate and not self._in_order:
            self._in_order = keeps_order(self.collate_fn, records, batch)
        return batch if self.device is None else move(batch, self.device)

    def _numbered(self, draws: Iterable[list[Any]]) -> Iterator[tuple[int, list[Any]]]:
        """With the step that each draw belongs to: a loader's workers may have drawn further ahead."""
        return enumerate(draws, start=self.sampler.upcoming)


def _as_list(records: list[Any]) -> list[Any]:
    return records


def _parts(counts: int | list[int], size: int) -> Iterator[tuple[int, int]]:
    """Micro-batches as (first row, row after the last): cut between users, through one only who has too many rows.

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

"""The records of Poisson draws, taken from a data set and handed out in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

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

    def questions(
        self,
        records: Sequence[Any],
        others: Callable[[int], list[Any]],
        collate: Callable[[Sequence[Any]], Any],
        size: int,
    ) -> Iterator[tuple[int, Any]]:
        """Yield the number of rows of each further micro-batch, and the micro-batch."""


Collate = Callable[[Sequence[Any]], Any]
"""Makes a micro-batch of some records."""


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
        groups: Sequence[tuple[Sequence[Any], Collate]] | None = None,
    ) -> None:
        self._records, self._others, self._counts = records, others, counts
        self._groups = [(records, collate)] if groups is None else groups
        self.outstanding = 0
        """Rows of the micro-batch that was handed out and has not gone through `backward` yet."""
        self.owned = False
        self.released = False
        self.handed_out: Callable[[Any], None] | None = None
        self.check: MicroBatchCheck | None = None

    def __len__(self) -> int:
        return len(self._records)

    def split(self, size: int) -> Iterator[Any]:
        """Micro-batches of at most `size` rows, as the data set collates them; none for an empty batch.

        A user's rows stay together where they fit; whether they do changes nothing in what is released. Under a
        Privatizer some micro-batches are followed by others, by which it checks that records do not influence each
        other. Pass them to `backward` like all others: nothing of them is added.
        """
        if size < 1:
            raise ValueError(f"Expected a micro-batch size >= 1, got {size}.")
        for records, collate in self._micro_batches(size):
            self._refuse_outstanding()
            yield self._hand_out(collate(records), len(records))
            # A loop that releases inside of this loop has a model of other weights by now: it cannot be asked.
            if self.check and self._others and not self.outstanding and not self.released:
                for rows, micro_batch in self.check.questions(records, self._others, collate, size):
                    yield self._hand_out(micro_batch, rows)

    def _micro_batches(self, size: int) -> Iterator[tuple[Sequence[Any], Collate]]:
        for records, collate in self._groups:
            for start, stop in _parts(len(records) if self._counts is None else self._counts, size):
                yield records[start:stop], collate

    def _refuse_outstanding(self) -> None:
        if self.owned and self.outstanding:
            raise PrivacyError(
                "The last micro-batch has not gone through private.backward(losses) yet. Pass each one before "
                "taking the next: its rows count exactly once."
            )

    def _hand_out(self, micro_batch: Any, rows: int) -> Any:
        self.outstanding = rows
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
        )
        self.current: Batch | None = None
        """The batch that was handed out and is not released yet."""
        self._handed_out: Callable[[Any], None] | None = None
        self._check: MicroBatchCheck | None = None
        self._in_order = False

    @classmethod
    def replay(
        cls, dataset: MapStyle, draws: Sequence[Sequence[int]], *, rate: float, **unit: Any
    ) -> PoissonBatches:
        """Batches with explicit draws (of users, given `unit`), for audits; marked not private."""
        batches = cls(dataset, rate=rate, steps=len(draws), **unit)
        sampler = batches.sampler
        batches.sampler = ReplayedSampler(
            sampler.records, draws, rate=rate, users=sampler.users, groups=sampler.groups
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

    def watch(self, handed_out: Callable[[Any], None] | None, check: MicroBatchCheck | None = None) -> None:
        """Call `handed_out` with each micro-batch just before the loop gets it, and let `check` ask about some."""
        self._handed_out, self._check = handed_out, check

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
            batch.handed_out, batch.check = self._handed_out, self._check
            self.current = batch
            yield batch

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no batch under way."""
        return self.__dict__ | {"current": None, "_handed_out": None, "_check": None}

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

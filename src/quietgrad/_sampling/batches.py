"""Poisson draws from a data set, to iterate over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, default_collate

from quietgrad._collective import Reducer
from quietgrad._errors import PrivacyError
from quietgrad._kernels.transfer import upload
from quietgrad._sampling.batch import Batch, MicroBatchCheck
from quietgrad._sampling.collate import MapStyle, keeps_order, move
from quietgrad._sampling.padding import PadCollate, PadTo, collating, stack
from quietgrad._sampling.poisson import PoissonSampler, ReplayedSampler
from quietgrad._sampling.users import Ids, Pooled
from quietgrad.accounting.base import Event
from quietgrad.accounting.planning import Charge


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
        """Make batches with explicit draws (of users, given `unit`), for audits; marked not private."""
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
        """Return the number of planned draws."""
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
        """Copy without the batch under way."""
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
        """Yield draws with the step that each belongs to: a loader's workers may have drawn further ahead."""
        return enumerate(draws, start=self.sampler.upcoming)


def _as_list(records: list[Any]) -> list[Any]:
    return records

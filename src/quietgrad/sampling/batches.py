"""The records of Poisson draws, taken from a data set and handed out in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from quietgrad.sampling.poisson import PoissonSampler, ReplayedSampler


class Batch:
    """The records of one Poisson draw; split into micro-batches as memory allows.

    Example:
        batch = next(iter(batches))  # may be empty
        micro = [len(x) for x, y in batch.split(8)]
    """

    def __init__(self, rows: int, take: Callable[[int, int], Any]) -> None:
        self._rows, self._take = rows, take
        self.outstanding = 0
        """Rows of the micro-batch that was handed out and has not gone through `backward` yet."""
        self.owned = False
        self.handed_out: Callable[[Any, int], None] | None = None

    def __len__(self) -> int:
        return self._rows

    def split(self, size: int) -> Iterator[Any]:
        """Micro-batches of at most `size` rows, as the data set collates them; none for an empty batch."""
        if size < 1:
            raise ValueError(f"Expected a micro-batch size >= 1, got {size}.")
        for start in range(0, self._rows, size):
            if self.owned and self.outstanding:
                raise ValueError(
                    "The last micro-batch has not gone through private.backward(losses) yet. Pass each one before "
                    "taking the next: its rows count exactly once."
                )
            stop = min(start + size, self._rows)
            self.outstanding = stop - start
            rows = self._take(start, stop)
            if self.handed_out is not None:
                self.handed_out(rows, stop - start)
            yield rows


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
            never given an empty list.

    Example:
        batches = qg.PoissonBatches(train_set, rate=0.25, steps=10)
        x, y = next(next(iter(batches)).split(64))
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        rate: float,
        steps: int,
        seed: int | None = None,
        workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        self.dataset, self.workers, self.collate_fn = dataset, workers, collate_fn
        self.sampler = PoissonSampler(len(dataset), rate=rate, steps=steps, seed=seed)  # type: ignore[arg-type]
        self.current: Batch | None = None
        self._handed_out: Callable[[Any, int], None] | None = None

    @classmethod
    def replay(cls, dataset: Dataset[Any], draws: Sequence[Sequence[int]], *, rate: float) -> PoissonBatches:
        """Batches with explicit draws, for audits; marked not private."""
        batches = cls(dataset, rate=rate, steps=len(draws))
        batches.sampler = ReplayedSampler(batches.sampler.records, draws, rate=rate)
        return batches

    @property
    def records(self) -> int:
        """N."""
        return self.sampler.records

    @property
    def waiting(self) -> bool:
        """Whether a batch was handed out that is not released yet."""
        return self.current is not None

    @property
    def rate(self) -> float:
        return self.sampler.rate

    @property
    def steps(self) -> int:
        return self.sampler.steps

    def watch(self, handed_out: Callable[[Any, int], None] | None) -> None:
        """Have `handed_out` called with each micro-batch and its number of rows, just before the loop gets it."""
        self._handed_out = handed_out

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
            batch.handed_out = self._handed_out
            self.current = batch
            yield batch

    def __getstate__(self) -> dict[str, Any]:
        """A copy has no batch under way."""
        return self.__dict__ | {"current": None, "_handed_out": None}

    def _refuse_unreleased(self) -> None:
        if self.sampler.owned and self.current is not None:
            raise ValueError(
                "The last batch was not released. Call private.release() before taking the next batch."
            )

    def _plain_tensors(self) -> bool:
        # A subclass may override __getitem__ (augmentation), so only the class itself is known to be plain indexing.
        return type(self.dataset) is TensorDataset and self.collate_fn is default_collate

    def _tensor_batches(self) -> Iterator[Batch]:
        tensors: tuple[Tensor, ...] = self.dataset.tensors  # type: ignore[attr-defined]
        for indices in self.sampler:
            rows = torch.tensor(indices, dtype=torch.long)
            yield Batch(len(indices), lambda a, b, rows=rows: [t[rows[a:b].to(t.device)] for t in tensors])  # type: ignore[misc]

    def _collated_batches(self) -> Iterator[Batch]:
        loader = DataLoader(
            self.dataset, batch_sampler=self.sampler, collate_fn=_as_list, num_workers=self.workers
        )
        for records in loader:
            yield Batch(len(records), lambda a, b, records=records: self.collate_fn(records[a:b]))  # type: ignore[misc]


def _as_list(records: list[Any]) -> list[Any]:
    return records

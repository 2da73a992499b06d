"""Poisson batches cut into the epochs that trainers count in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from quietgrad._sampling.batch import Batch
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.collate import MapStyle
from quietgrad._sampling.padding import PadTo


class Epochs:
    """A loader for trainers: each loop is one epoch of ⌈N / batch⌉ draws.

    The next loop continues from there.

    Args:
        dataset: map-style.
        batch: expected records of a step.
        epochs: expected passes over the data; counts where `max_steps` is not positive.
        max_steps: steps in all.
        workers: processes that load records ahead.
        collate_fn: the trainer's collator.
        pad_to: as of `PoissonBatches`.
    """

    def __init__(
        self,
        dataset: MapStyle,
        *,
        batch: int,
        epochs: float,
        max_steps: int,
        workers: int,
        collate_fn: Callable[[list[Any]], Any],
        pad_to: PadTo | None = None,
    ) -> None:
        records = len(dataset)  # type: ignore[arg-type]
        self.dataset = dataset
        self._length = math.ceil(records / batch)
        self.done = 0
        self.batches = PoissonBatches(
            dataset,
            rate=min(1.0, batch / records),
            steps=max_steps if max_steps > 0 else math.ceil(epochs * self._length),
            workers=workers,
            collate_fn=collate_fn,
            pad_to=pad_to,
        )

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        left = self._length - self.done % self._length
        for batch in islice(self.batches, left):
            self.done += 1
            yield batch

    def skip_to(self, step: int) -> None:
        """Go on at a later step, within its epoch."""
        self.done = step

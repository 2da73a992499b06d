"""Poisson batches: each step draws each record independently with probability q.

Formal guarantee: the draw of a step is independent of the data and of all other draws. It is made as Binomial(N, q)
followed by a uniform subset of that size, which is the same distribution at the cost of the batch instead of of N.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Sampler

from quietgrad.collective import Reducer
from quietgrad.noise.sources import fresh_generator


class PoissonSampler(Sampler[list[int]]):
    """Index lists of Poisson draws, for `DataLoader(batch_sampler=…)`.

    Each iteration goes on where the last one stopped, until `steps` draws were made in all.

    Args:
        records: N, the number of records. It is public (neighbours are zero-out).
        rate: q in (0, 1].
        steps: how many draws the plan has.
        seed: makes the draws reproducible and the run not private; leave it out for OS entropy.
    """

    def __init__(self, records: int, *, rate: float, steps: int, seed: int | None = None) -> None:
        if records < 1:
            raise ValueError(f"Expected records >= 1, got {records}. Is the training set empty?")
        if not 0 < rate <= 1:
            raise ValueError(
                f"Expected rate in (0, 1], got {rate}. It is the expected batch size divided by N."
            )
        if steps < 1:
            raise ValueError(f"Expected steps >= 1, got {steps}.")
        self.records, self.rate, self.steps = records, float(rate), int(steps)
        self.private = seed is None
        self._rng = fresh_generator() if seed is None else np.random.Generator(np.random.PCG64DXSM(seed))
        self._rank, self._world = 0, 1
        self._drawn: deque[tuple[int, int]] = deque()
        self._next = 0
        self._first_known = 0

    @property
    def expected_batch(self) -> float:
        """qN, the constant every release is divided by."""
        return self.rate * self.records

    def rows(self, step: int) -> int | None:
        """How many rows this rank drew for a step; None if it was not drawn yet. Private."""
        drawn = self._known(step)
        return None if drawn is None else drawn[0]

    def draw_hash(self, step: int) -> int | None:
        """Stands for the whole draw of a step, on whichever rank; None if it was not drawn yet. Private."""
        drawn = self._known(step)
        return None if drawn is None else drawn[1]

    def _known(self, step: int) -> tuple[int, int] | None:
        while self._first_known < step and self._drawn:
            self._drawn.popleft()
            self._first_known += 1
        return self._drawn[0] if self._first_known == step and self._drawn else None

    def divide(self, reducer: Reducer) -> None:
        """Make the draws of rank 0 on every rank, and yield only this rank's part of each; parts may be empty."""
        if self._next and reducer.world != self._world:
            raise ValueError(
                f"{self._next} batches were drawn in a world of {self._world} before {reducer.world} ranks began to "
                "share the draws: a record could be in two parts. Make the Privatizer before iterating over batches."
            )
        self._rng = reducer.broadcast(lambda: self._rng)
        self._rank, self._world = reducer.rank, reducer.world

    def skip_to(self, step: int) -> None:
        """Go on at a later step of the plan (after a resume), with fresh draws."""
        self._next = self._first_known = step
        self._drawn.clear()

    def draw(self) -> list[int]:
        """The record numbers of one step, ascending."""
        size = int(self._rng.binomial(self.records, self.rate))
        chosen = self._rng.choice(self.records, size, replace=False, shuffle=False)
        chosen.sort()
        indices: list[int] = chosen.tolist()
        return indices

    def __iter__(self) -> Iterator[list[int]]:
        if self._next >= self.steps:
            raise ValueError(
                f"All {self.steps} planned steps were drawn, and ε covers the plan only. "
                "Plan more steps before calibrating."
            )
        while self._next < self.steps:
            whole = self.draw()
            part = whole[self._rank :: self._world]
            self._drawn.append((len(part), zlib.crc32(np.asarray(whole, dtype=np.int64).tobytes())))
            self._next += 1
            yield part

    def __len__(self) -> int:
        return self.steps - self._next


class ReplayedSampler(PoissonSampler):
    """Explicit draws, for audits that compare neighbouring runs; never private."""

    def __init__(self, records: int, draws: Sequence[Sequence[int]], *, rate: float) -> None:
        super().__init__(records, rate=rate, steps=len(draws), seed=0)
        self._draws = [list(draw) for draw in draws]

    def draw(self) -> list[int]:
        return self._draws[self._next]

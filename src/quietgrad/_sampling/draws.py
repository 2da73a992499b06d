"""The draws of a run, made once and kept until they are released."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Draw:
    """Hold one step's draw. Private.

    Args:
        rows: the record numbers of this rank; ascending, or one user's after the other's.
        hash: stands for the records, or users, of all ranks.
        counts: how many rows each user has here; None where records are drawn.
        used: how many of the rows count; those after them fill the batch up. None where all do.
    """

    rows: list[int]
    hash: int
    counts: list[int] | None = None
    used: int | None = None


class Draws:
    """Keep draws, made once and in the order of the steps, until they are released.

    Args:
        first: the step that comes first; those before it are over.
    """

    def __init__(self, first: int = 0) -> None:
        self.first = first
        self._kept: deque[Draw] = deque()

    @property
    def next(self) -> int:
        """The first step that was not drawn yet."""
        return self.first + len(self._kept)

    def add(self, draw: Draw) -> None:
        """Add the draw of step `next`."""
        self._kept.append(draw)

    def get(self, step: int) -> Draw:
        return self._kept[step - self.first]

    def of(self, step: int) -> Draw | None:
        """Return the draw of a step; None if it was not made yet, or is over."""
        return self.get(step) if self.first <= step < self.next else None

    def forget_through(self, step: int) -> None:
        while self.first <= step and self._kept:
            self._kept.popleft()
            self.first += 1

"""Things taken a few at a time, as many as there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def packed(things: Iterable[T], size: Callable[[T], int], room: int) -> Iterator[list[T]]:
    """Runs of things whose sizes add up to at most `room`; one that is larger is alone."""
    run: list[T] = []
    filled = 0
    for thing in things:
        if run and filled + size(thing) > room:
            yield run
            run, filled = [], 0
        run.append(thing)
        filled += size(thing)
    if run:
        yield run

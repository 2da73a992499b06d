"""The size of a batch as a number that remembers what it is, through all arithmetic, and `len(x)` that gives it.

Python makes a plain number of whatever `__len__` returns, which could then only be known by its value: a constant that
happens to be the size of the batch would be taken for it. So while a micro-batch is followed, `len` itself is another
function, in the thread that follows it.
"""

from __future__ import annotations

import builtins
import operator
import threading
from collections.abc import Callable, Sized
from typing import Any, no_type_check


class Count(int):
    """An integer computed from the number of rows; `other` is what it would be with one row more."""

    other: int

    def __new__(cls, value: int, other: int) -> Count:
        count = super().__new__(cls, value)
        count.other = other
        return count


class FloatCount(float):
    """The same, not whole."""

    other: float

    def __new__(cls, value: float, other: float) -> FloatCount:
        count = super().__new__(cls, value)
        count.other = other
        return count


def _remembering(operation: Callable[[Any, Any], Any], *, swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Count | FloatCount, with_: Any) -> Any:
        if not isinstance(with_, int | float):
            return NotImplemented
        mine, theirs = (_plain(self), self.other), (_plain(with_), getattr(with_, "other", with_))
        pairs = [(theirs[i], mine[i]) if swapped else (mine[i], theirs[i]) for i in (0, 1)]
        try:
            value, other = (operation(*pair) for pair in pairs)
        except ZeroDivisionError:
            value = other = operation(*pairs[0])
        return Count(value, other) if isinstance(value, int) else FloatCount(value, other)

    return method


def _plain(value: float) -> float:
    return int(value) if isinstance(value, int) else float(value)


for _kind in (Count, FloatCount):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "pow", "mod"):
        setattr(_kind, f"__{_name}__", _remembering(getattr(operator, _name), swapped=False))
        setattr(_kind, f"__r{_name}__", _remembering(getattr(operator, _name), swapped=True))


Counter = Callable[[object], Count | None]
"""The number of rows of a thing; None if it is not its business."""

_builtin = builtins.len
_watching: list[tuple[int, Counter]] = []
_lock = threading.Lock()
_asked = threading.local()


def watch_lengths(counter: Counter) -> None:
    """Ask this counter first, in this thread, until it is forgotten."""
    with _lock:
        _watching.append((threading.get_ident(), counter))
        builtins.len = _counting


def forget_lengths(counter: Counter) -> None:
    """Do not ask it any more; the last one leaves everything as it was."""
    with _lock:
        _watching[:] = [(thread, other) for thread, other in _watching if other != counter]
        if not _watching:
            builtins.len = _builtin


@no_type_check  # what checks annotations takes lengths itself
def _counting(obj: Sized, /) -> int:
    length = _builtin(obj)
    if getattr(_asked, "now", False):  # a length that a counter takes is none of the model's
        return length
    mine = threading.get_ident()
    _asked.now = True
    try:
        counts = [counter(obj) for thread, counter in tuple(_watching) if thread == mine]
    finally:
        _asked.now = False
    return next((count for count in counts if count is not None), length)

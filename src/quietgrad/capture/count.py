"""The size of a batch as a number that remembers what it is, through all arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


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

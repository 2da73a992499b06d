"""Memory that is written over and over: fresh pages would cost more than what is computed in them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line."""


class Scratch(threading.local):
    """Arrays by name, each thread's own."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """`count` numbers of the array of this name; they mean nothing yet, and hold until it is asked for again."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = _aligned(count, np.dtype(dtype))
        return kept[:count]


def _aligned(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """numpy begins arrays anywhere; products that are written across cache lines take a third longer."""
    size = count * dtype.itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype)

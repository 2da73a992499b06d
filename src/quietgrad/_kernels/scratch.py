"""Working memory that is used again: fresh pages would cost more than what is computed in them.

Memory has one owner at a time. A function borrows an array in a `with` block and nobody else can get it before the
block ends; a second borrower meanwhile, as in a nested call, gets an array of its own. Each thread has its own pool.

Checked by: tests/kernels/test_scratch.py
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LINE = 64
"""Bytes of a cache line."""


class Scratch(threading.local):
    """A pool of byte arrays by name; the largest free one of each name stays for the next borrower."""

    def __init__(self) -> None:
        self._free: dict[str, NDArray[np.uint8]] = {}

    @contextlib.contextmanager
    def borrow(self, name: str, count: int, dtype: DTypeLike) -> Iterator[NDArray[Any]]:
        """Lend `count` numbers without a meaning yet; whatever lies in them is lost when the block ends."""
        size = count * np.dtype(dtype).itemsize
        # Taken out of the pool while it is in use: a nested borrower finds nothing and allocates.
        memory = self._free.pop(name, None)
        if memory is None or len(memory) < size:
            memory = _allocate_aligned(size)
        try:
            yield memory[:size].view(dtype)
        finally:
            waiting = self._free.get(name)
            if waiting is None or len(waiting) < len(memory):
                self._free[name] = memory


def _allocate_aligned(size: int) -> NDArray[np.uint8]:
    """Begin at a cache line, as numpy does not: products written across lines take a third longer."""
    # One line more than asked for: somewhere in it is an address that is a multiple of 64.
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size]

"""Memory for what lives only during a draw."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Scratch(threading.local):
    """Arrays that are written over and over, each thread's own: fresh pages would cost more than the draws in them."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """`count` numbers of the array of this name; they mean nothing yet, and hold until it is asked for again."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = np.empty(count, dtype)
        return kept[:count]

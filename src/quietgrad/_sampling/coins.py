"""Independent coins of one probability, one for each record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietgrad._noise.aes import RandomWords

AT_ONCE = 1 << 16
"""Coins tossed at a time."""


def heads(count: int, probability: float, words: RandomWords) -> NDArray[np.int64]:
    """Return which of `count` coins fell on heads, ascending.

    A coin is a 64-bit number below ⌊2⁶⁴·probability⌋: right to 2⁻⁶⁴, on the side of fewer heads. Its first 16 bits
    nearly always tell; the others are drawn only where they do not.
    """
    numerator, denominator = float(probability).as_integer_ratio()
    limit = (numerator << 64) // denominator
    first, rest = limit >> 48, np.uint64(limit & (2**48 - 1))
    found = []
    for start in range(0, count, AT_ONCE):
        coins = np.empty(min(AT_ONCE, count - start), np.uint16)
        words.fill(coins)
        head = coins < first
        doubtful = np.flatnonzero(coins == first)
        if len(doubtful):
            head[doubtful] = (words.take(len(doubtful)) >> np.uint64(16)) < rest
        found.append(np.flatnonzero(head) + start)
    return np.concatenate(found)

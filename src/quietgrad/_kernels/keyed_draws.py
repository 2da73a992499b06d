"""Which random bits each coordinate of a keyed draw takes, and what a kernel leaves for exact arithmetic.

A draw has a key of 32 bytes. ChaCha20's block b of stream s has 16 words of 32 bits. Coordinate i takes

    trial 0:        stream 0, block 128·(i // 1024) + i mod 128, words 2j and 2j + 1 with j = (i mod 1024) // 128
    trial k ≥ 1:    stream k, block i; words 0 to 3 make a point of a box, words 4 and 5 the tent of the next trial
    exact bits:     stream 2⁶³ + 2³²·k + c, block i, for the c-th 64 bytes that trial k takes beyond its words

The bits are a function of key and index alone. Order, launch shape, slices and devices do not change a draw, and no bit
serves two coordinates. A tile of 1024 coordinates takes 128 blocks, so that the threads of a device write side by side.
Checked by: tests/noise/test_keyed.py, tests/triton_kernels/test_noise.py
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCKS = 128
"""Blocks of a tile."""
TILE = 8 * BLOCKS
"""Coordinates of a tile."""
TRIALS = 2
"""Trials of boxes that a kernel makes; what they leave open goes back to the host."""
EXACT = 1 << 63
"""The first stream of the bits for exact arithmetic."""


class Unfinished(NamedTuple):
    """Places of a draw whose integer is still to be found: with which slot of boxes, from which trial on."""

    places: NDArray[np.int64]
    slots: NDArray[np.int64]
    trials: NDArray[np.int64]

"""The area under the Gaussian curve cut into pieces of equal size, from which points can be drawn exactly.

    Σ_i n_i·tent_i  ≤  g  ≤  Σ_i n_i·tent_i + boxes          g(x) = e^{−x²/2},  x in standard deviations

A uniform point under g has a Gaussian abscissa, whichever way it was drawn. Tents stand on every eighth of a standard
deviation and fill 99.4% of the area: the sum of two uniform integers is a point of a tent, without any rounding or
rejection. What is left between tents and curve is covered by boxes a sixteenth as wide and as high, of which a point
counts if it lies below the curve; beyond eight standard deviations by two endless boxes that halve at every eighth.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLOTS = 1 << 13
"""Equally likely choices: a tent each, or as many boxes as are as large as a tent."""
PER_STD = 8
"""Centres of tents in a standard deviation; a tent is twice as wide as they are apart."""
REACH = 8
"""Standard deviations that tents and boxes reach to either side."""
STRIPS = 16
"""Strips between two centres; a box is a strip wide."""
BOXES = STRIPS**2
"""Boxes of a tent's area."""
UNIT = 2.0**-24
"""Heights are multiples of it, so that float64 holds them exactly."""


@dataclass(frozen=True)
class Pieces:
    """How many tents stand on each centre and how many boxes on each strip.

    Args:
        height: of a box, in UNITs; a tent is STRIPS times as high.
        tents: n_i for the centres i/8, i = −64 … 64.
        boxes: for the strips from −8 to 8, one on top of the other from the tents upwards.
    """

    height: int
    tents: NDArray[np.int64]
    boxes: NDArray[np.int64]

    @property
    def fit(self) -> bool:
        """Whether the slots suffice, with the two ends."""
        return int(self.tents.sum()) * BOXES + int(self.boxes.sum()) + 2 <= SLOTS * BOXES


@functools.lru_cache(maxsize=8)
def cut(std: int) -> Pieces:
    """The pieces for a standard deviation of `std` integer steps: as low as they can be and still fit."""
    low, high = 1 << 10, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _pieces(middle, std).fit else (middle, high)
    pieces = _pieces(high, std)
    assert pieces.fit, f"no pieces fit for a standard deviation of {std} steps"
    return pieces


def _pieces(height: int, std: int) -> Pieces:
    centres = np.arange(-REACH * PER_STD, REACH * PER_STD + 1) / PER_STD
    edges = np.arange(-REACH * PER_STD * STRIPS, REACH * PER_STD * STRIPS + 1) / (PER_STD * STRIPS)
    curve, tent = np.exp(-edges * edges / 2), STRIPS * height * UNIT
    # Between two edges g leaves its chord by at most max g''/8·width² downwards (g'' ≤ 0.4463) and max −g''/8·width²
    # upwards (−g'' ≤ 1). Tents are flat over a step and the steps' edges lie half a step off, which both move less
    # than a step's rise (0.61/std) each; twice that and more is allowed for.
    squared, step = (PER_STD * STRIPS) ** -2.0, 2.0 / std
    tents = np.floor(np.exp(-centres * centres / 2) / tent).astype(np.int64)
    while True:
        left = curve - np.interp(edges, centres, tents * tent)
        too_high = _touched(tents, np.minimum(left[:-1], left[1:]) < 0.4463 / 8 * squared + step)
        if not too_high.any():
            break
        tents[too_high] -= 1
    covered = np.maximum(left[:-1], left[1:]) + squared / 8 + step
    return Pieces(height, tents, np.ceil(covered / (height * UNIT)).astype(np.int64))


def _touched(tents: NDArray[np.int64], strips: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The centres, of the two beside each marked strip the one with more tents; none where there are no tents."""
    centre = np.unique(np.flatnonzero(strips) // STRIPS)
    higher = np.where(tents[centre] >= tents[centre + 1], centre, centre + 1)
    touched = np.zeros(len(tents), bool)
    touched[higher[tents[higher] > 0]] = True
    return touched

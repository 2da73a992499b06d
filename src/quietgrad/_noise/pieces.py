"""Cut the area under the Gaussian curve into pieces of equal size, from which points can be drawn exactly.

    Σ_i n_i·tent_i  ≤  g  ≤  Σ_i n_i·tent_i + boxes          g(x) = e^{−x²/2},  x in standard deviations

Why pieces: if a point (x, y) is uniform under the curve g, then x is Gaussian. So drawing a Gaussian means drawing a
uniform point of an area, and an area may be cut up. Choose a piece with a probability proportional to its size, then
draw a uniform point inside it. With pieces of equal size the choice is 13 random bits and needs no arithmetic.

Why tents: the sum of two uniform integers has a triangular density, a "tent". Its points cost one addition, without
rounding and without rejection. Tents of one width and height stand on every eighth of a standard deviation, n_i of them
stacked on centre i. Side by side they add up to a piecewise linear function, which stays below g and fills 99.4% of it.

Why boxes: the rest lies between the tents' roof and the curve. Boxes of a sixteenth of a tent's width and height cover
it, 256 of them as large as one tent. They reach a little above g, so a point of a box counts only if it lies below the
curve; otherwise the trial is repeated. Beyond eight standard deviations there are two endless boxes, whose height
halves at every eighth.

Exactness needs the inequality above and nothing else; heights and counts only decide how often a point is rejected.
Checked by: tests/noise/test_pieces.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SLOTS = 1 << 13
"""Equally likely choices of 13 bits: a tent each, or the 256 boxes that are together as large as a tent."""
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
        """Whether the slots suffice, with the two endless boxes."""
        return int(self.tents.sum()) * BOXES + int(self.boxes.sum()) + 2 <= SLOTS * BOXES


@functools.lru_cache(maxsize=8)
def cut(std: int) -> Pieces:
    """Find the pieces for a standard deviation of `std` integer steps: as low as they can be and still fit.

    Lower pieces follow the curve more closely, so fewer points are rejected, but it takes more of them.
    """
    # The number of pieces falls as they grow, so bisection finds the lowest height for which the slots suffice.
    low, high = 1 << 10, 1 << 14
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _pieces(middle, std).fit else (middle, high)
    pieces = _pieces(high, std)
    assert pieces.fit, f"no pieces fit for a standard deviation of {std} steps"
    return pieces


def _pieces(height: int, std: int) -> Pieces:
    """Stack tents of a height from below, then cover what is left with boxes."""
    centres = np.arange(-REACH * PER_STD, REACH * PER_STD + 1) / PER_STD
    edges = np.arange(-REACH * PER_STD * STRIPS, REACH * PER_STD * STRIPS + 1) / (PER_STD * STRIPS)
    curve, tent = np.exp(-edges * edges / 2), STRIPS * height * UNIT
    # Only edges of strips are compared, so what g does between two edges has to be bounded. It leaves the chord by at
    # most max g''/8·width² downwards (g'' ≤ 0.4463) and max −g''/8·width² upwards (−g'' ≤ 1). Integers add two small
    # errors: tents are flat over a step, and the steps' edges lie half a step off. Each moves the roof by less than the
    # curve rises in a step (0.61/std); `step` allows for more than both.
    squared, step = (PER_STD * STRIPS) ** -2.0, 2.0 / std
    # Where g is convex, between its inflection and the tail, chords of full stacks would lie above it. Stacks start
    # full and lose a tent wherever the roof comes too close to the curve, until it does so nowhere.
    tents = np.floor(np.exp(-centres * centres / 2) / tent).astype(np.int64)
    while True:
        left = curve - np.interp(edges, centres, tents * tent)
        too_high = _touches(tents, np.minimum(left[:-1], left[1:]) < 0.4463 / 8 * squared + step)
        if not too_high.any():
            break
        tents[too_high] -= 1
    covered = np.maximum(left[:-1], left[1:]) + squared / 8 + step
    return Pieces(height, tents, np.ceil(covered / (height * UNIT)).astype(np.int64))


def _touches(tents: NDArray[np.int64], strips: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark, of the two centres beside each marked strip, the one with more tents; none where there are no tents."""
    centre = np.unique(np.flatnonzero(strips) // STRIPS)
    higher = np.where(tents[centre] >= tents[centre + 1], centre, centre + 1)
    touched = np.zeros(len(tents), bool)
    touched[higher[tents[higher] > 0]] = True
    return touched

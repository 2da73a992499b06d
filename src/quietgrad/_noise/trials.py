"""Trials of the rounded Gaussian in numpy: the reference of the kernels for them.

A trial draws one of the pieces under the curve (`pieces`) and a point in it. Most pieces are tents, whose points are
sums of integers and always count. The others are boxes, whose points count if they lie below the curve.
`RoundedGaussian` decides those that float64 cannot decide. A kernel must draw the same integers from the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quietgrad._kernels.gaussian_trials import BELOW, UNDECIDED, PieceTables
from quietgrad._kernels.registry import on_the_cpu, operation
from quietgrad._kernels.scratch import Scratch
from quietgrad._noise.aes import RandomWords
from quietgrad._noise.pieces import BOXES, SLOTS

SCRATCH = Scratch()


@operation(on_the_cpu)
def draw_tents(
    tables: PieceTables, out: NDArray[np.int32], words: RandomWords
) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Overwrite `out` with points of tents; return the places that want a box instead, and their slots.

    Checked by: tests/noise/test_rounded_gaussian.py, tests/kernels/test_integer_noise.py
    """
    places, slots = [np.empty(0, np.int32)], [np.empty(0, np.int16)]
    for start in range(0, len(out), tables.at_once):
        slot = tent_points(tables, out[start : start + tables.at_once], words)
        boxed = np.flatnonzero(slot >= tables.tents)
        slots.append((slot[boxed] - np.uint16(tables.tents)).astype(np.int16))
        places.append((boxed + start).astype(np.int32))
    return np.concatenate(places), np.concatenate(slots)


def tent_points(tables: PieceTables, out: NDArray[np.int32], words: RandomWords) -> NDArray[np.uint16]:
    """Overwrite `out` with points of tents and return the slots; where that is no tent, `out` means nothing."""
    with SCRATCH.borrow("words", 8 * len(out), np.uint8) as raw:
        words.fill(raw)
        return points_of_tents(tables, out, *raw.view(np.int32).reshape(2, len(out)))


def points_of_tents(
    tables: PieceTables, out: NDArray[np.int32], first: NDArray[np.int32], second: NDArray[np.int32]
) -> NDArray[np.uint16]:
    """Compute the same from given words, which are used up: their memory is overwritten."""
    shift = np.int32(32 - tables.log_apart)
    # What the points leave of the words, at their other end: nine bits of one and four of the other.
    slot = first.astype(np.uint16)
    slot <<= np.uint16(4)
    slot &= np.uint16(SLOTS - 16)
    slot |= second.astype(np.uint16) & np.uint16(15)
    np.copyto(out, tables.centre[slot])
    out <<= np.int32(tables.log_apart)
    # A signed shift leaves a uniform integer between −apart/2 and apart/2; the sum of two has mean −1.
    first >>= shift
    second >>= shift
    out += first
    out += second
    out += np.int32(1)
    return slot


@operation(on_the_cpu)
def draw_boxes(
    tables: PieceTables,
    out: NDArray[np.int32],
    places: NDArray[np.int32],
    slots: NDArray[np.int16],
    words: NDArray[np.uint64],
) -> NDArray[np.uint8]:
    """Write a point of a box to each of the places of `out`; return what became of it.

    A point is BELOW the curve, above it (0), or UNDECIDED: too close for float64, or in one of the two ends.

    Args:
        words: the first words of all places, then the second ones.

    Checked by: tests/noise/test_rounded_gaussian.py, tests/kernels/test_integer_noise.py
    """
    first, second = words.reshape(2, len(places))
    box, integer = find_integers(tables, slots, first)
    within = _within(tables)
    fraction = (first & np.uint64((1 << within) - 1)) * 2.0**-within
    x = (integer + (fraction - 0.5)) * 2.0**-tables.log_std
    y = roofs(tables, box, integer) + tables.box["level"][box].astype(np.float64) + second * 2.0**-64
    y *= tables.height
    curve = np.exp(-0.5 * x * x)
    out[places] = integer
    # The two endless boxes have no single height, so their points are left to exact arithmetic. A point near the
    # curve is too: closer than MARGIN, the rounding of exp might turn the answer round.
    ends = (box == tables.boxes) | (box == tables.boxes + 1)
    verdicts: NDArray[np.uint8] = np.where(y < curve, np.uint8(BELOW), np.uint8(0))
    verdicts[(np.abs(y - curve) < tables.margin) | ends] = UNDECIDED
    return verdicts


def _within(tables: PieceTables) -> int:
    """Count the bits of a first word that say where in the cell of its integer a point lies."""
    return 56 - (tables.log_apart - 4)


def find_integers(
    tables: PieceTables, slots: NDArray[np.integer], first: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Find the box of each point, and its integer."""
    box = slots.astype(np.int64) * BOXES + (first >> np.uint64(56)).view(np.int64)
    strip = (1 << tables.log_apart) // tables.strips
    inside = (first >> np.uint64(_within(tables))).view(np.int64) & (strip - 1)
    return box, tables.box["start"][box] + inside


def roofs(tables: PieceTables, box: NDArray[np.integer], integer: NDArray[np.integer]) -> NDArray[np.float64]:
    """Compute how high the tents are at an integer, in boxes: exact in float64."""
    apart = 1 << tables.log_apart
    along = integer & (apart - 1)
    left, right = tables.box["left"][box], tables.box["right"][box]
    weighted = left * (apart - along) + right * along
    roof: NDArray[np.float64] = weighted * np.float64(tables.strips / apart)
    return roof

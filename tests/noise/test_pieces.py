"""Tents lie under the Gaussian curve and boxes reach above it, everywhere: then points under it are drawn exactly."""

from __future__ import annotations

import numpy as np
import pytest

from quietgrad._noise.pieces import BOXES, PER_STD, REACH, SLOTS, STRIPS, UNIT, Pieces, cut


def lowest_and_highest(integers: np.ndarray, std: int) -> tuple[np.ndarray, np.ndarray]:
    """The curve's least and greatest value over the unit cell of each integer."""
    left, right = np.abs(integers - 0.5), np.abs(integers + 0.5)
    near = np.where(integers == 0, 0.0, np.minimum(left, right))
    return np.exp(-((np.maximum(left, right) / std) ** 2) / 2), np.exp(-((near / std) ** 2) / 2)


def roof(pieces: Pieces, integers: np.ndarray, std: int) -> np.ndarray:
    """The tents' height, by summing over all of them."""
    apart = std // PER_STD
    height = np.zeros(len(integers))
    for centre, count in zip(range(-REACH * PER_STD, REACH * PER_STD + 1), pieces.tents, strict=True):
        tent = np.maximum(0.0, 1.0 - np.abs(integers - centre * apart) / apart)
        height += count * tent * STRIPS * pieces.height * UNIT
    return height


def cells(log_std: int) -> np.ndarray:
    """Every integer within reach, or a million of them and those around all edges."""
    std, ends = 1 << log_std, REACH << log_std
    if log_std <= 12:
        return np.arange(-ends, ends)
    edges = np.arange(-ends, ends, std // PER_STD // STRIPS)
    around = (edges[:, None] + np.arange(-2, 3)).ravel()
    return np.concatenate(
        [np.clip(around, -ends, ends - 1), np.random.default_rng(0).integers(-ends, ends, 10**6)]
    )


@pytest.mark.parametrize("log_std", [7, 8, 10, 12, 26])
def test_tents_stay_below_the_curve_and_boxes_reach_above_it(log_std: int) -> None:
    std, pieces, integers = 1 << log_std, cut(1 << log_std), cells(log_std)
    lowest, highest = lowest_and_highest(integers, std)
    tents = roof(pieces, integers, std)
    strips = (integers + REACH * std) // (std // PER_STD // STRIPS)
    covered = tents + pieces.boxes[strips] * pieces.height * UNIT
    assert float((lowest - tents).min()) > 0
    assert float((covered - highest).min()) > 0


def test_the_ends_cover_the_tails() -> None:
    """Part j beyond REACH is an eighth wide and half as high as the one before."""
    height = cut(1 << 26).height * UNIT
    for part in range(200):
        curve = np.exp(-((REACH + part / PER_STD - 1e-6) ** 2) / 2)
        assert height / STRIPS / 2.0 ** (part + 1) > curve


def test_slots_hold_all_pieces_and_nearly_all_are_tents() -> None:
    pieces = cut(1 << 26)
    assert pieces.fit
    assert pieces.tents.sum() > 0.99 * SLOTS
    used = pieces.tents.sum() * BOXES + pieces.boxes.sum() + 2
    assert 0.999 * SLOTS * BOXES < used <= SLOTS * BOXES
    # What is drawn in vain: the area of all slots over that under the curve.
    area = SLOTS * BOXES * pieces.height * UNIT / (PER_STD * STRIPS)
    assert 1.0 < area / np.sqrt(2 * np.pi) < 1.002

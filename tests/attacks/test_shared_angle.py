"""Noise subtraction: coordinates k and k + half of float32 Box–Muller noise share one of 2²⁴ angles.

The adversary reads p.grad of one step, knows both candidate sums (with and without his victim) and asks for which of
them the angles of (p.grad·qN − sum), taken at a fixed distance of coordinates, lie on float32's grid. The distance he
learns from a release of his own.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

from tests.attacks.harness import CHANCE, hits
from tests.attacks.targets import SETTINGS, SLOW_SETTINGS, Game, play

STEP = np.float32(math.pi * 2.0**-31)
FEWEST = 40
"""Pairs that a guess about a distance needs."""
SURE = 4.0
"""Standard errors below which the adversary tosses a coin instead."""


def off_grid(noise: Tensor, offset: int) -> NDArray[np.float64]:
    """How far each angle is from the grid of float32(bits)·float32(π·2⁻³¹), in units of the grid there."""
    values = noise.numpy()
    angles = np.arctan2(values[offset:], values[:-offset])
    bits = (angles / np.float64(STEP)).astype(np.float32)
    near = (
        np.stack([np.nextafter(bits, np.float32(algorithm)) for algorithm in (-np.inf, np.inf)] + [bits])
        * STEP
    )
    error = np.abs(near.astype(np.float64) - angles).min(0) / np.spacing(np.abs(near[-1])).astype(np.float64)
    return np.asarray(error[np.abs(angles) > 1.0])


def learned_offset(game: Game) -> int:
    """The distance of coordinates at which a known noise looks least random."""
    noise = game.noise(game.shadow, game.present)

    def surprise(offset: int) -> float:
        errors = off_grid(noise, offset)
        return float((errors.mean() - 0.29) * math.sqrt(len(errors)))

    return min(range(1, len(noise) - FEWEST), key=surprise)


def guessed(game: Game) -> float:
    """The part of the steps in which the victim's presence was guessed rightly."""
    shown = learned_offset(game)

    def suspicion(seen: Tensor) -> float:
        there = off_grid(game.noise(seen, game.present), shown)
        away = off_grid(game.noise(seen, game.absent), shown)
        difference = float(away.mean() - there.mean())
        error = math.sqrt(away.var() / len(away) + there.var() / len(there))
        return difference if abs(difference) > SURE * error else 0.0

    return hits(game.seen, game.truth, suspicion)


@pytest.mark.parametrize("sigma", [1.0, 4.0, 100.0])
def test_at_other_noise_the_angles_tell_nothing_either(sigma: float) -> None:
    """On 0.1: 200 of 200 at each σ, one release each."""
    assert guessed(play("dp_sgd", "float32", "default", sigma)) <= CHANCE


@pytest.mark.parametrize(("method", "dtype", "source"), SETTINGS)
def test_angles_do_not_tell_the_true_sum(method: str, dtype: str, source: str) -> None:
    """On 0.1, σ = 20: 200 of 200 for dp_sgd in float32 and mixed dtypes, rgp and random_freeze; chance elsewhere."""
    assert guessed(play(method, dtype, source, 20.0)) <= CHANCE


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dtype", "source"), SLOW_SETTINGS)
def test_nor_in_the_remaining_settings(method: str, dtype: str, source: str) -> None:
    """On 0.1: chance."""
    assert guessed(play(method, dtype, source, 20.0)) <= CHANCE

"""The price of records that take part once in t steps: closed forms, integrals, simulation, and order."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy import signal, special

from quietgrad.accounting import (
    AllocationEvent,
    GaussianEvent,
    Phase,
    StepLoss,
    delta,
    epsilon,
    event_from_dict,
    event_to_dict,
)
from quietgrad.accounting.allocation import log_moments_of_mean


def blocks(sigma: float, steps: int, count: int = 1) -> list[Phase]:
    return [Phase(event=AllocationEvent(noise_multiplier=sigma, steps=steps), rate=1.0, count=count)]


def hockey_sticks(loss: StepLoss, eps: float) -> list[float]:
    return [
        side.infinity + float(side.mass @ np.maximum(-np.expm1(np.minimum(eps - side.losses, 0.0)), 0.0))
        for side in (loss.remove, loss.add)
    ]


def test_one_step_is_the_gaussian_mechanism() -> None:
    known = [Phase(event=GaussianEvent(noise_multiplier=1.3), rate=1.0, count=4)]
    assert epsilon(blocks(1.3, 1, 4), 1e-5) == pytest.approx(epsilon(known, 1e-5), rel=1e-6)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("eps", [-0.5, 0.0, 0.3, 1.5])
def test_two_steps_against_an_integral(sigma: float, eps: float) -> None:
    """R = (X₁ + X₂)/2, integrated over both normals; both directions, and never below."""
    z = np.linspace(-9, 9, 1801)
    weights = np.exp(-(z**2) / 2)
    weights /= weights.sum()
    x = np.exp(z / sigma - 1 / (2 * sigma**2))
    ratio, mass = (x[:, None] + x[None, :]) / 2, weights[:, None] * weights[None, :]
    exact = [
        float((mass * np.maximum(ratio - math.exp(eps), 0)).sum()),
        float((mass * np.maximum(1 - math.exp(eps) * ratio, 0)).sum()),
    ]
    claimed = hockey_sticks(AllocationEvent(noise_multiplier=sigma, steps=2).step_loss(1.0, 1e-3), eps)
    for exactly, claim in zip(exact, claimed, strict=True):
        assert exactly - 2e-4 * exactly - 1e-8 <= claim <= 1.02 * exactly + 1e-6


def merged(sigma: float, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """X with its outcomes merged in cells: exact masses without the record, and the exact means in each."""
    edges = np.concatenate([[-np.inf], np.linspace(-9, 9 + 1 / sigma, cells - 1), [np.inf]])
    tails = [special.ndtr(np.stack([edges - s, s - edges])) for s in (0.0, 1 / sigma)]
    mass, mean = (np.maximum(np.diff(left), -np.diff(right)) for left, right in tails)
    return mass, mean / np.maximum(mass, 1e-300)


def merged_ratio(sigma: float, steps: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """R of merged outcomes: a post-processing of the block, so what it costs is a bound from below. No tolerance."""
    mass, x = merged(sigma, cells)
    masses, sums = mass, x
    for _ in range(steps - 1):
        masses, sums = np.outer(masses, mass).ravel(), np.add.outer(sums, x).ravel()
    return masses, sums / steps


@pytest.mark.parametrize(("steps", "cells"), [(2, 700), (3, 100)])
@pytest.mark.parametrize("sigma", [pytest.param(0.46, marks=pytest.mark.slow), 0.7, 1.0, 5.0])
def test_never_below_what_merged_outcomes_cost(sigma: float, steps: int, cells: int) -> None:
    mass, ratio = merged_ratio(sigma, steps, cells)
    loss = AllocationEvent(noise_multiplier=sigma, steps=steps).step_loss(1.0, 1e-3)
    for eps in (-1.0, -0.3, 0.0, 0.2, 0.7, 1.5, 3.0):
        gains = np.maximum(ratio - math.exp(eps), 0.0), np.maximum(1 - math.exp(eps) * ratio, 0.0)
        for gain, claim in zip(gains, hockey_sticks(loss, eps), strict=True):
            least = float(mass @ gain)
            assert least <= claim * (1 + 1e-12)
            if least > 1e-4:
                assert claim <= (1.01 if steps == 2 else 1.05) * least


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("sigma", [0.6, 1.5])
def test_blocks_compose_and_are_never_below_merged_outcomes(sigma: float, count: int) -> None:
    """Epochs one after the other: the convolution of merged losses, rounded down, is below; both directions."""
    mass, ratio = merged_ratio(sigma, 2, 300)
    grid, below = 1e-3, []
    for losses, own in ((np.log(ratio), mass * ratio), (-np.log(ratio), mass)):
        places = np.floor(losses / grid).astype(int)
        one = np.bincount(places - places.min(), own)
        whole = one
        for _ in range(count - 1):
            whole = signal.fftconvolve(whole, one)
        below.append((count * int(places.min()) + np.arange(len(whole)), whole))
    for eps in (0.1, 1.0, 2.0):
        least = max(
            float(own @ np.maximum(-np.expm1(np.minimum(eps - where * grid, 0.0)), 0.0))
            for where, own in below
        )
        claimed = delta(blocks(sigma, 2, count), eps)
        assert least - 1e-12 <= claimed <= 1.03 * least + 1e-6


@pytest.mark.parametrize(("sigma", "steps"), [(0.6, 12), (1.0, 20), (2.0, 50)])
def test_against_simulation(sigma: float, steps: int) -> None:
    """δ of one block from a million draws of R; five standard errors on either side."""
    rng, count = np.random.default_rng(3), 1_000_000
    total = np.zeros(count)
    for _ in range(steps):
        total += np.exp(rng.standard_normal(count, dtype=np.float32) / sigma - 1 / (2 * sigma**2))
    ratio = total / steps
    loss = AllocationEvent(noise_multiplier=sigma, steps=steps).step_loss(1.0, 1e-4)
    for eps in (-0.2, 0.0, 0.1, 0.4):
        gains = np.maximum(ratio - math.exp(eps), 0), np.maximum(1 - math.exp(eps) * ratio, 0)
        for gain, claim in zip(gains, hockey_sticks(loss, eps), strict=True):
            error = 5 * gain.std() / math.sqrt(count)
            assert gain.mean() - error <= claim <= 1.01 * gain.mean() + error + 1e-6


def test_masses_and_means_are_those_of_a_ratio() -> None:
    """Σ mass = 1 in both directions, and E_P[e^(−L)] = 1: a pair of distributions, up to what counts as infinite."""
    for sigma, steps in ((0.46, 30), (1.0, 100), (5.0, 300)):
        loss = AllocationEvent(noise_multiplier=sigma, steps=steps).step_loss(1.0, 1e-3)
        for side in (loss.remove, loss.add):
            assert float(side.mass.sum()) == pytest.approx(1.0, abs=1e-9)
            assert float(side.mass @ np.exp(-side.losses)) == pytest.approx(1.0, abs=1e-5)
            assert side.infinity < 1e-9


def test_between_poisson_and_knowing_the_place() -> None:
    """For a whole epoch it is close to Poisson draws of the same expected batch, and far below a known place."""
    for sigma, steps, count in ((0.7, 50, 1), (1.0, 100, 10), (3.0, 200, 20)):
        ours = epsilon(blocks(sigma, steps, count), 1e-5)
        event = GaussianEvent(noise_multiplier=sigma)
        poisson = epsilon([Phase(event=event, rate=1 / steps, count=steps * count)], 1e-5)
        known = epsilon([Phase(event=event, rate=1.0, count=count)], 1e-5)
        assert 0.7 * poisson < ours < 1.01 * poisson < known


def test_more_noise_and_more_steps_cost_less() -> None:
    values = [epsilon(blocks(sigma, 40, 3), 1e-5) for sigma in (0.25, 0.44, 0.46, 0.8, 1.5, 4.0)]
    assert values == sorted(values, reverse=True)
    values = [epsilon(blocks(0.8, steps), 1e-5) for steps in (1, 2, 5, 20, 100)]
    assert values == sorted(values, reverse=True)


def test_rdp_is_an_upper_bound_too() -> None:
    for sigma, steps, count in ((0.7, 20, 1), (1.0, 50, 5), (4.0, 10, 10)):
        run = blocks(sigma, steps, count)
        assert epsilon(run, 1e-5, accountant="rdp") > epsilon(run, 1e-5)


def test_moments_of_the_mean_by_hand() -> None:
    """E[R²] = 1 + (e^(1/σ²) − 1)/t, and E[R³] from the cumulants of a sum."""
    square, steps = 0.8, 7
    logs = log_moments_of_mean(square, steps, 3)
    second = 1 + math.expm1(square) / steps
    m = [math.exp(k * (k - 1) * square / 2) for k in range(4)]
    third = (steps * m[3] + 3 * steps * (steps - 1) * m[2] + steps * (steps - 1) * (steps - 2)) / steps**3
    assert np.exp(logs) == pytest.approx([1.0, 1.0, second, third])


def test_it_survives_json_and_refuses_nonsense() -> None:
    event = AllocationEvent(noise_multiplier=1.0, steps=10)
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    with pytest.raises(ValueError, match="rate 1"):
        delta([Phase(event=event, rate=0.5, count=1)], 1.0)
    for wrong in ({"noise_multiplier": -1.0, "steps": 5}, {"noise_multiplier": 1.0, "steps": 0}):
        with pytest.raises(ValueError, match="Expected"):
            AllocationEvent(**wrong)  # type: ignore[arg-type]
    assert special.ndtr(-7.5) < 4e-14

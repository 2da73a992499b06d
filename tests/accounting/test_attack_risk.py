"""Attack risks: equal to the closed forms of the Gaussian mechanism, never below them, and met by calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

import quietgrad as qg
from quietgrad.accounting import GaussianEvent, Phase, attack_advantage, members_found
from quietgrad.accounting.planning import Steps
from tests.accounting.test_calibrate import Batches, Scheduled

SIGMAS = (0.5, 1.0, 3.0, 10.0)
RATES = (1e-4, 0.01, 0.3, 0.9)
ROUNDING = 1e-11
"""Of the Fourier transform that composes losses."""


def run(sigma: float, *, rate: float = 1.0, steps: int = 1) -> tuple[Phase, ...]:
    return (Phase(event=GaussianEvent(noise_multiplier=sigma), rate=rate, count=steps),)


@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("sigma", SIGMAS)
def test_full_batches_have_the_advantage_of_one_gaussian(sigma: float, steps: int) -> None:
    truth = 2 * norm.cdf(math.sqrt(steps) / (2 * sigma)) - 1
    found = attack_advantage(run(sigma, steps=steps))
    assert truth - ROUNDING <= found <= 1.001 * truth


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_full_batches_let_as_many_be_found_as_one_gaussian(sigma: float, rate: float) -> None:
    truth = norm.cdf(norm.ppf(rate) + 1 / sigma)
    found = members_found(run(sigma), rate)
    assert truth - ROUNDING <= found <= 1.004 * truth


@pytest.mark.parametrize("rate", [0.01, 0.3])
def test_one_poisson_step_is_bounded_by_the_exact_test_between_mixture_and_noise(rate: float) -> None:
    """The best test thresholds the loss, which rises with the draw: P = (1 − q) N(0, σ) + q N(1, σ) against N(0, σ)."""
    sigma, q = 0.7, 0.2
    threshold = sigma * norm.ppf(1 - rate)
    in_or_out = q * norm.sf((threshold - 1) / sigma) + (1 - q) * rate
    # The other role: recognising the noise, with false positives on the mixture.
    grid = np.linspace(-20, 20, 400_001)
    accused = (1 - q) * norm.cdf(grid / sigma) + q * norm.cdf((grid - 1) / sigma)
    other = float(np.interp(rate, accused, norm.cdf(grid / sigma)))
    assert members_found(run(sigma, rate=q), rate) >= max(in_or_out, other) - ROUNDING
    assert members_found(run(sigma, rate=q), rate) <= 1.02 * max(in_or_out, other)


def test_found_is_between_guessing_and_what_epsilon_and_delta_allow() -> None:
    phases = run(1.1, rate=1 / 60, steps=600)
    epsilon = qg.accounting.epsilon(phases, 1e-5)
    shares = [members_found(phases, rate) for rate in RATES]
    assert all(
        rate < share <= math.exp(epsilon) * rate + 1e-5 for rate, share in zip(RATES, shares, strict=True)
    )
    assert shares == sorted(shares)
    assert all(
        share - rate <= attack_advantage(phases) + 1e-9 for rate, share in zip(RATES, shares, strict=True)
    )


def test_nothing_released_is_guessing_and_no_noise_finds_all() -> None:
    assert members_found((), 0.01) == 0.01
    assert members_found(run(0.0), 0.01) == 1.0


def calibrated(batches: Steps, **target: float) -> tuple[Phase, ...]:
    mechanism = qg.calibrate(Scheduled(), batches, **target)
    return qg.accounting.plan(mechanism, batches)


def test_calibration_by_advantage_meets_the_closed_form() -> None:
    phases = calibrated(Batches(rate=1.0, steps=1), advantage=0.1)
    sigma = phases[0].event.noise_multiplier  # type: ignore[attr-defined]
    assert sigma == pytest.approx(1 / (2 * norm.ppf(0.55)), rel=2e-3)
    assert 2 * norm.cdf(1 / (2 * sigma)) - 1 <= 0.1


def test_calibration_by_members_found_meets_the_closed_form() -> None:
    phases = calibrated(Batches(rate=1.0, steps=1), false_positives=0.01, found=0.05)
    sigma = phases[0].event.noise_multiplier  # type: ignore[attr-defined]
    assert sigma == pytest.approx(1 / (norm.ppf(0.05) - norm.ppf(0.01)), rel=2e-3)
    assert norm.cdf(norm.ppf(0.01) + 1 / sigma) <= 0.05


def test_a_subsampled_run_stays_within_its_risk_closely() -> None:
    batches = Batches(rate=0.02, steps=500)
    assert 0.0995 < attack_advantage(calibrated(batches, advantage=0.1)) <= 0.1
    found = calibrated(batches, false_positives=0.01, found=0.05)
    assert 0.0497 < members_found(found, 0.01) <= 0.05


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({}, "got none"),
        ({"epsilon": 1.0}, "in part"),
        ({"found": 0.1}, "in part"),
        ({"epsilon": 1.0, "delta": 1e-5, "advantage": 0.1}, "advantage"),
        ({"advantage": 1.0}, r"advantage in \(0, 1\)"),
        ({"false_positives": 0.05, "found": 0.05}, "Guessing"),
    ],
)
def test_exactly_one_whole_target_is_wanted(target: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        qg.calibrate(Scheduled(), Batches(), **target)


def test_gip_divides_a_risk_too() -> None:
    data = qg.PoissonBatches(list(range(100)), rate=0.5, steps=4)
    model = torch.nn.Linear(8, 2)
    mechanism = qg.methods.gip(model=model, batches=data, clip=1.0)
    made = qg.calibrate(mechanism, data, advantage=0.2)
    assert attack_advantage(qg.accounting.plan(made, data)) <= 0.2

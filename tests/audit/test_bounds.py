"""Estimators on the analytic Gaussian: below the truth as often as they say, and close to it with enough samples."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from quietgrad.audit.bounds import (
    best_threshold,
    epsilon_from_counts,
    gaussian_delta,
    gaussian_epsilon,
    mu_from_counts,
    proportion_at_least,
    proportion_at_most,
    scores_needed,
    slope_over_noise,
)

DELTA = 1e-5
REPETITIONS = 1_000
THEORY = {0.5: 9.997, 1.0: 4.377, 2.0: 1.993, 4.0: 0.926}


@pytest.mark.parametrize(("sigma", "epsilon"), THEORY.items())
def test_gaussian_epsilon_is_the_known_curve(sigma: float, epsilon: float) -> None:
    assert gaussian_epsilon(1 / sigma, DELTA) == pytest.approx(epsilon, abs=1e-3)
    assert gaussian_delta(1 / sigma, epsilon) == pytest.approx(DELTA, rel=1e-2)


def test_gaussian_epsilon_of_nothing_is_zero() -> None:
    assert gaussian_epsilon(0.0, DELTA) == 0.0
    assert gaussian_epsilon(1e-7, DELTA) == 0.0


def test_clopper_pearson_against_its_definition() -> None:
    low = proportion_at_least(7, 20, 0.01)
    chance = special.bdtrc(6, 20, low)  # P[Bin(20, low) ≥ 7]
    assert chance == pytest.approx(0.01, rel=1e-6)
    assert proportion_at_most(7, 20, 0.01) == pytest.approx(1 - proportion_at_least(13, 20, 0.01))
    assert proportion_at_least(0, 20, 0.01) == 0.0
    with pytest.raises(ValueError, match="trials"):
        proportion_at_least(3, 2, 0.05)


def counts(sigma: float, samples: int, threshold: float) -> list[tuple[int, int]]:
    """(caught, false alarms) of the Gaussian mechanism: their exact distribution, without drawing the scores."""
    rng = np.random.default_rng(int(1000 * sigma))
    hits = rng.binomial(samples, special.ndtr((1 - threshold) / sigma), REPETITIONS)
    alarms = rng.binomial(samples, special.ndtr(-threshold / sigma), REPETITIONS)
    return list(zip(hits.tolist(), alarms.tolist(), strict=True))


@pytest.mark.parametrize("sigma", THEORY)
def test_clopper_pearson_epsilon(sigma: float) -> None:
    truth = gaussian_epsilon(1 / sigma, DELTA)
    threshold = (
        sigma**2 * truth * 0.9 + 0.5
    )  # near the likelihood ratio of the bound; fixed before the counts
    samples = 10**9
    bounds = [
        epsilon_from_counts(hit, samples, alarm, samples, delta=DELTA, alpha=0.05)
        for hit, alarm in counts(sigma, samples, threshold)
    ]
    assert np.mean(np.array(bounds) <= truth) >= 0.95
    assert np.median(bounds) >= 0.8 * truth


@pytest.mark.parametrize("sigma", THEORY)
def test_gdp_from_counts(sigma: float) -> None:
    samples = 200_000
    bounds = np.array(
        [
            mu_from_counts(hit, samples, alarm, samples, alpha=0.05)
            for hit, alarm in counts(sigma, samples, 0.5)
        ]
    )
    assert np.mean(bounds <= 1 / sigma) >= 0.95
    truth = gaussian_epsilon(1 / sigma, DELTA)
    assert gaussian_epsilon(float(np.median(bounds)), DELTA) >= 0.8 * truth


@pytest.mark.parametrize("sigma", THEORY)
def test_slope_over_noise(sigma: float) -> None:
    rng = np.random.default_rng(7)
    samples = scores_needed(1 / sigma, alpha=0.05, share=0.9)
    bounds = np.empty(REPETITIONS)
    for i in range(REPETITIONS):
        included = rng.random(samples) < 0.5
        bounds[i] = slope_over_noise(
            included.astype(float), included + sigma * rng.standard_normal(samples), alpha=0.05
        )
    right = float(np.mean(bounds <= 1 / sigma))
    # Exact: neither too bold nor needlessly careful.
    assert 0.93 <= right <= 0.97
    truth = gaussian_epsilon(1 / sigma, DELTA)
    assert gaussian_epsilon(float(np.median(bounds)), DELTA) >= 0.8 * truth


def test_slope_without_noise_is_infinite_and_without_signal_zero() -> None:
    signal = np.array([0.0, 1.0, 0.0, 1.0, 1.0])
    assert slope_over_noise(signal, 3 * signal, alpha=0.01) == np.inf
    assert slope_over_noise(np.ones(5), signal, alpha=0.01) == 0.0
    with pytest.raises(ValueError, match="at least 3 scores"):
        slope_over_noise(signal[:2], signal[:2], alpha=0.01)


def test_threshold_on_the_same_scores_would_lie() -> None:
    """Why thresholds are chosen on other scores: on pure noise the best of many is too good too often."""
    rng = np.random.default_rng(3)
    same, held_out = 0, 0
    for _ in range(40):
        members, others = rng.standard_normal((2, 200))
        threshold = best_threshold(members, others, delta=0.0, alpha=0.5)
        for test_members, test_others, kind in (
            (members, others, "same"),
            (*rng.standard_normal((2, 200)), "new"),
        ):
            bound = epsilon_from_counts(
                int((test_members >= threshold).sum()), 200, int((test_others >= threshold).sum()), 200,
                delta=0.0, alpha=0.5,
            )  # fmt: skip
            same += kind == "same" and bound > 0
            held_out += kind == "new" and bound > 0
    assert held_out <= 0.5 * 40
    assert same > 0.5 * 40

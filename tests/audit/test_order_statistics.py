"""The bound by order statistics: never too large, and as tight as the others with a quarter of the canaries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from quietgrad.audit import order_statistics
from quietgrad.audit.bounds import gaussian_epsilon
from quietgrad.audit.one_run import gaussian_trade_off, guess, one_run_epsilon, one_run_mu
from quietgrad.audit.one_run_report import SHARES
from quietgrad.audit.order_statistics import refuted_by_order

DELTA, ALPHA = 1e-5, 0.05


def gaussian_scores(mu: float, canaries: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    included = rng.random(canaries) < 0.5
    return mu * included + rng.standard_normal(canaries), included


def refuted_mu(scores: np.ndarray, included: np.ndarray, alpha: float) -> float:
    low, high = 0.0, 8.0
    while high - low > 0.03:
        middle = (low + high) / 2
        refuted = refuted_by_order(scores, included, gaussian_trade_off(middle), alpha=alpha)
        low, high = (middle, high) if refuted else (low, middle)
    return low


def todays_bound(scores: np.ndarray, included: np.ndarray) -> float:
    """ε by guesses: the better of both bounds, as a report computes them."""
    canaries, alpha, best = len(scores), ALPHA / 2 / len(SHARES), 0.0
    for share in SHARES:
        right, guesses = guess(scores, included, max(2, 2 * round(share * canaries / 2)))
        mu = float(one_run_mu(np.array([right]), guesses, canaries, alpha=alpha)[0])
        plain = one_run_epsilon(right, guesses, canaries, delta=DELTA, alpha=alpha)
        best = max(best, plain, gaussian_epsilon(mu, DELTA))
    return best


@pytest.mark.parametrize("mu", [1.0, 2.0])
def test_as_tight_as_guesses_with_a_quarter_of_the_canaries(mu: float) -> None:
    """Medians of five repetitions; no bound is above the truth."""
    rng = np.random.default_rng(4)
    truth = gaussian_epsilon(mu, DELTA)
    today = [todays_bound(*gaussian_scores(mu, 600, rng)) for _ in range(5)]
    order = [gaussian_epsilon(refuted_mu(*gaussian_scores(mu, 150, rng), ALPHA / 2), DELTA) for _ in range(5)]
    assert np.median(order) > np.median(today)
    assert max(order) < truth


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.7, 2.0])
def test_the_truth_is_refuted_as_seldom_as_promised(mu: float) -> None:
    """A thousand repetitions at α = 0.05, and of a law that is no Gaussian but has the same curve."""
    rng, often = np.random.default_rng(6), 0
    for repetition in range(1_000):
        scores, included = gaussian_scores(mu, 60, rng)
        scores = np.exp(scores) if repetition % 2 else scores
        often += refuted_by_order(scores, included, gaussian_trade_off(mu), alpha=ALPHA)
    assert often <= ALPHA * 1_000 + 4 * np.sqrt(ALPHA * 1_000)
    assert often > 0.4 * ALPHA * 1_000


def test_simulated_placements_have_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one canary each, T is who is higher: refuted if and only if α is above AUC = Φ(μ/√2)."""
    monkeypatch.setattr(order_statistics, "SIMULATIONS", 20_000)
    scores, included = np.array([1.0, 0.0]), np.array([True, False])
    for mu in (0.0, 1.0):
        chance = float(special.ndtr(mu / np.sqrt(2)))
        curve = gaussian_trade_off(mu)
        assert not refuted_by_order(scores, included, curve, alpha=0.95 * chance)
        assert refuted_by_order(scores, included, curve, alpha=1.05 * chance)


def test_ties_and_members_alone_show_nothing() -> None:
    perfect = gaussian_trade_off(0.0)
    included = np.arange(100) % 2 == 0
    assert not refuted_by_order(np.zeros(100), included, perfect, alpha=ALPHA)
    assert not refuted_by_order(np.arange(100.0), np.ones(100, dtype=bool), perfect, alpha=ALPHA)
    assert refuted_by_order(included.astype(float), included, perfect, alpha=ALPHA)

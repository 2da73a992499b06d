"""One-run bounds on the analytic Gaussian mechanism with m = 10⁵ simulated canaries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from quietgrad.audit.bounds import gaussian_epsilon
from quietgrad.audit.one_run import gaussian_trade_off, guess, one_run_epsilon, one_run_mu, p_value, refuted

DELTA = 1e-5
CANARIES = 100_000
# σ → guesses that were best on other scores, one-run ε to be found, f-DP guesses
SETTINGS = {
    0.5: (10_000, 4.9, 2_000),
    1.0: (2_000, 2.7, 1_000),
    2.0: (1_000, 1.3, 1_000),
    4.0: (1_000, 0.6, 200),
}


def right_guesses(sigma: float, guesses: int, repetitions: int) -> np.ndarray:
    """Right guesses among the `guesses`/2 highest and lowest scores, drawn from the exact model of both tails."""
    rng = np.random.default_rng(int(10 * sigma))
    out = np.empty(repetitions, dtype=int)
    for i in range(repetitions):
        included = rng.random(CANARIES) < 0.5
        scores = included + sigma * rng.standard_normal(CANARIES)
        half = guesses // 2
        order = np.argpartition(scores, (half, CANARIES - half))
        out[i] = included[order[-half:]].sum() + (~included[order[:half]]).sum()
    return out


def test_p_value_against_its_definition() -> None:
    right, guesses, canaries, epsilon, delta = 40, 50, 200, 1.0, 1e-3
    chance = special.expit(epsilon)
    pmf = stats.binom.pmf(np.arange(guesses + 1), guesses, chance)
    worst = max(pmf[right - i : right].sum() / i for i in range(1, right + 1))
    expected = pmf[right:].sum() + 2 * canaries * delta * worst
    assert p_value(right, guesses, canaries, epsilon=epsilon, delta=delta) == pytest.approx(expected)
    assert p_value(right, guesses, canaries, epsilon=epsilon, delta=0) == pytest.approx(pmf[right:].sum())


@pytest.mark.parametrize("sigma", SETTINGS)
def test_one_run_bounds_of_the_gaussian(sigma: float) -> None:
    guesses, expected, gaussian_guesses = SETTINGS[sigma]
    truth = gaussian_epsilon(1 / sigma, DELTA)
    rights = right_guesses(sigma, guesses, 20)
    bounds = [one_run_epsilon(int(v), guesses, CANARIES, delta=DELTA, alpha=0.05) for v in rights]
    assert np.median(bounds) == pytest.approx(expected, rel=0.08)
    assert max(bounds) <= truth
    rights = right_guesses(sigma, gaussian_guesses, 20)
    mus = one_run_mu(rights, gaussian_guesses, CANARIES, alpha=0.05)
    tighter = gaussian_epsilon(float(np.median(mus)), DELTA)
    assert np.median(bounds) < tighter <= truth


@pytest.mark.slow
@pytest.mark.parametrize("sigma", SETTINGS)
def test_never_above_theory_in_1000_repetitions(sigma: float) -> None:
    """m = 2,000, so that a thousand repetitions are affordable; below the truth at least as often as promised."""
    rng = np.random.default_rng(5)
    canaries, guesses, alpha = 2_000, 200, 0.05
    included = rng.random((1_000, canaries)) < 0.5
    scores = included + sigma * rng.standard_normal((1_000, canaries))
    rights = np.array([guess(s, x, guesses)[0] for s, x in zip(scores, included, strict=True)])
    counts, repeats = np.unique(rights, return_counts=True)
    truth = gaussian_epsilon(1 / sigma, DELTA)
    epsilons = np.array(
        [one_run_epsilon(int(v), guesses, canaries, delta=DELTA, alpha=alpha) for v in counts]
    )
    mus = one_run_mu(counts, guesses, canaries, alpha=alpha)
    assert repeats @ (epsilons > truth) <= alpha * 1_000
    assert repeats @ (mus > 1 / sigma) <= alpha * 1_000
    assert repeats @ (mus > 0) > 900  # it does show something


def test_f_dp_recursion_against_a_plain_loop() -> None:
    right, guesses, canaries, mu, alpha = 70, 100, 400, 0.8, 0.01
    rights, wrongs = alpha * right / canaries, alpha * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        lowest = special.ndtr(special.ndtri(min(rights, 1.0)) - mu)
        gained = max(lowest - wrongs, 0.0)
        wrongs += gained
        rights += gained * i / (guesses - i)
    slow = rights + wrongs > guesses / canaries
    fast = refuted(np.array([right]), guesses, canaries, gaussian_trade_off(mu), alpha=alpha)
    assert bool(fast[0]) == slow


def test_more_right_guesses_show_more() -> None:
    mus = one_run_mu(np.array([50, 60, 70, 80, 90, 100]), 100, 400, alpha=0.01)
    assert mus[0] == 0.0
    assert np.all(np.diff(mus) >= 0)
    assert mus[-1] > mus[2] > 0


def test_guesses_count_both_ends() -> None:
    scores = np.array([5.0, 4.0, 0.0, 0.1, -3.0, -4.0])
    included = np.array([True, False, True, True, False, False])
    assert guess(scores, included, 4) == (3, 4)
    with pytest.raises(ValueError, match="guesses"):
        guess(scores, included, 8)
    with pytest.raises(ValueError, match="right"):
        one_run_epsilon(5, 4, 6, delta=DELTA, alpha=0.05)

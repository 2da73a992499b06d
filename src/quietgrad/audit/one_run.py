"""ε from the guesses of a single run in which m canaries were each included with probability ½.

Two bounds on the number of right guesses: for any (ε, δ)-private algorithm (Steinke, Nasr, Jagielski 2023), and for one
that is f-private for a whole curve f (Mahloujifar, Melis, Chaudhuri 2024), which is tighter because a δ of the size of
1/m costs the first one dearly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy
from jaxtyping import Bool, Float64, Int
from numpy import ndarray

Values = Float64[ndarray, " v"]
Counts = Int[ndarray, " v"]


def guess(scores: Float64[ndarray, " m"], included: Bool[ndarray, " m"], guesses: int) -> tuple[int, int]:
    """(right guesses, guesses): the highest half of `guesses` are called members, the lowest half others.

    Args:
        guesses: decided before the scores are seen, or on other scores.

    Raises:
        ValueError: there are fewer than 2 guesses, or more than canaries.
    """
    half = guesses // 2
    if not 0 < 2 * half <= len(scores):
        raise ValueError(f"Expected 2 <= guesses <= {len(scores)} (the canaries), got {guesses}.")
    order = np.argsort(scores, kind="stable")
    right = int(included[order[-half:]].sum()) + int((~included[order[:half]]).sum())
    return right, 2 * half


def p_value(right: int, guesses: int, canaries: int, *, epsilon: float, delta: float) -> float:
    """How likely an (ε, δ)-private algorithm allows at least so many right guesses.

    p = β + 2mδα,   β = P[Bin(r, e^ε/(1+e^ε)) ≥ v],   α = max_i P[v−i ≤ Bin < v]/i
    """
    chance = float(scipy.special.expit(epsilon))
    tail = float(scipy.stats.binom.sf(right - 1, guesses, chance))
    if right == 0 or delta == 0:
        return min(tail, 1.0)
    below = np.cumsum(scipy.stats.binom.pmf(np.arange(right - 1, -1, -1), guesses, chance))
    worst = float(np.max(below / np.arange(1, right + 1)))
    return min(tail + 2 * canaries * delta * worst, 1.0)


def one_run_epsilon(right: int, guesses: int, canaries: int, *, delta: float, alpha: float) -> float:
    """The largest ε whose p-value is below alpha: a lower bound that is wrong with probability alpha."""
    _check_guesses(right, guesses, canaries)

    def rejected(epsilon: float) -> bool:
        return p_value(right, guesses, canaries, epsilon=epsilon, delta=delta) < alpha

    return _largest(rejected, 1.0)


def one_run_mu(
    right: Counts, guesses: int, canaries: int, *, alpha: float, precision: float = 1e-3
) -> Values:
    """The largest μ for which μ-Gaussian privacy is refuted by so many right guesses (one bound for each count)."""
    low, high = np.zeros(len(right)), np.full(len(right), 1.0)
    while True:
        up = refuted(right, guesses, canaries, gaussian_trade_off(high), alpha=alpha)
        if not up.any() or high.max() > 64:
            break
        low, high = np.where(up, high, low), np.where(up, 2 * high, high)
    while float((high - low).max()) > precision:
        middle = (low + high) / 2
        up = refuted(right, guesses, canaries, gaussian_trade_off(middle), alpha=alpha)
        low, high = np.where(up, middle, low), np.where(up, high, middle)
    return low


def refuted(
    right: Counts, guesses: int, canaries: int, trade_off: Callable[[Values], Values], *, alpha: float
) -> Bool[ndarray, " v"]:
    """Whether at least so many right guesses have probability below alpha under an f-private algorithm.

    Let p_j be the chance of exactly j right guesses, R_i = Σ_{j≥i} j·p_j/m and W_i = Σ_{j≥i} (r−j)·p_j/m: the chances
    that a random canary is guessed rightly (wrongly) in such an outcome. Flipping one canary turns the first event into
    the second, so W_{i−1} ≥ f̄⁻¹(R_i). From P[j ≥ v] = alpha downwards this forces a total mass R_0 + W_0; more than
    r/m is a contradiction.

    Args:
        trade_off: f̄⁻¹, the least chance of an event under one world that has chance x under its neighbour.
    """
    rights, wrongs = alpha * right / canaries, alpha * (guesses - right) / canaries
    # All counts go down together; one that starts lower waits for its turn.
    for i in range(int(right.max()) - 1, -1, -1):
        started = i < right
        forced = np.maximum(wrongs, trade_off(rights))
        gained = np.where(started, forced - wrongs, 0.0)
        wrongs = wrongs + gained
        rights = rights + gained * (i / (guesses - i))
        if bool(np.all((rights + wrongs > guesses / canaries) | (rights > 1))):
            break
    return np.asarray(rights + wrongs > guesses / canaries)


def gaussian_trade_off(mu: Values | float) -> Callable[[Values], Values]:
    """f̄⁻¹(x) = Φ(Φ⁻¹(x) − μ)."""

    def inverse(chances: Values) -> Values:
        value: Values = scipy.special.ndtr(scipy.special.ndtri(np.minimum(chances, 1.0)) - mu)
        return value

    return inverse


def _largest(rejected: Callable[[float], bool], start: float) -> float:
    low, high = 0.0, start
    if not rejected(0.0):
        return 0.0
    while rejected(high) and high < 100:
        low, high = high, 2 * high
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def _check_guesses(right: int, guesses: int, canaries: int) -> None:
    if not 0 <= right <= guesses <= canaries or guesses < 1:
        raise ValueError(
            f"Expected 0 <= right <= guesses <= canaries, got {right} of {guesses} of {canaries}."
        )

"""Rényi differential privacy: the cross-check of the PLD, and the price of tuning."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.pld import is_private
from quietgrad.accounting.renyi_moments import Orders

Tries = Literal["logarithmic", "geometric", "poisson"]
"""The distribution of the number of tries."""

INTEGER_ORDERS = np.concatenate([np.arange(2, 64), np.arange(64, 257, 8), [512, 1024]]).astype(float)
"""Orders at which the moments of a subsampled product are a finite sum: whole ones."""


def rdp(phases: Iterable[Phase]) -> tuple[Orders, Orders]:
    """Return orders, and the run's RDP at each: budgets add over steps."""
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    runs = coalesce(phases)
    whole = any(run.event.only_whole_orders for run in runs)
    orders = INTEGER_ORDERS if whole else np.asarray(DEFAULT_RDP_ORDERS, dtype=float)
    if not is_private(runs):
        return orders, np.full_like(orders, np.inf)
    return orders, sum((run.count * run.event.rdp(run.rate, orders) for run in runs), np.zeros_like(orders))


def rdp_epsilon(phases: Iterable[Phase], delta: float) -> float:
    """Return the smallest ε that RDP proves at δ."""
    orders, values = rdp(phases)
    if not values.any():
        return 0.0
    return _epsilon(orders, values, delta)


def repeat_and_select(
    phases: Iterable[Phase], delta: float, mean_tries: float, *, tries: Tries = "logarithmic"
) -> float:
    """The ε of running a RANDOM number of times with this mean and releasing only the best run.

    Papernot and Steinke, "Hyperparameter tuning with Rényi differential privacy" (2022), theorems 2 and 6.
    The number of tries must really be drawn from `tries` before the first run; a fixed number is not covered.

    Raises:
        ValueError: the mean number of tries is below 1.
    """
    if not 1 <= mean_tries < math.inf:
        raise ValueError(
            f"Expected mean_tries >= 1 and finite, got {mean_tries}. It is the mean number of runs."
        )
    orders, values = rdp(phases)
    if not values.any():
        return 0.0
    if not np.isfinite(values).any():
        return math.inf
    if tries == "poisson":
        tuned = values + _poisson_extra(orders, values, mean_tries)
    else:
        tuned = values + _negative_binomial_extra(
            orders, values, mean_tries, shape=float(tries == "geometric")
        )
    return _epsilon(orders, tuned + math.log(mean_tries) / (orders - 1), delta)


def _epsilon(orders: Orders, values: Orders, delta: float) -> float:
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    return float(compute_epsilon(orders, values, delta)[0])


def _poisson_extra(orders: Orders, values: Orders, mean: float) -> Orders:
    """Return mean · δ(ε = log(1 + 1/(a-1))) at each order a."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    deltas = [compute_delta(orders, values, math.log1p(1 / (order - 1)))[0] for order in orders]
    return mean * np.asarray(deltas, dtype=float)


def _negative_binomial_extra(orders: Orders, values: Orders, mean: float, *, shape: float) -> Orders:
    """Return (1 + shape) min over a of ((1 - 1/a) rdp(a) + log(1/γ) / a), the same at every order."""
    gamma = 1 / mean if shape else logarithmic_gamma(mean)
    return np.full_like(orders, (1 + shape) * np.min((1 - 1 / orders) * values - math.log(gamma) / orders))


def logarithmic_gamma(mean: float) -> float:
    """Find γ with (1/γ - 1) / log(1/γ) = mean, from below: a smaller γ costs more."""
    low, high = 1e-300, 1.0
    while high > low * (1 + 1e-12):
        middle = math.sqrt(low * high)
        too_few = middle == 1 or math.expm1(-math.log(middle)) / -math.log(middle) < mean
        low, high = (low, middle) if too_few else (middle, high)
    return low

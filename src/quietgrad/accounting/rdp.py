"""Rényi differential privacy: the cross-check of the PLD, and the price of tuning."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as dp_rdp
from jaxtyping import Float64
from numpy import ndarray
from scipy import special

from quietgrad.accounting.combinatorics import log_choose
from quietgrad.accounting.events import Event, GaussianEvent, Phase, coalesce
from quietgrad.accounting.pairs import group_loss, parts_of
from quietgrad.accounting.pld import is_private

Tries = Literal["logarithmic", "geometric", "poisson"]
"""The distribution of the number of tries."""

Orders = Float64[ndarray, " orders"]
INTEGER_ORDERS = np.concatenate([np.arange(2, 64), np.arange(64, 257, 8), [512, 1024]]).astype(float)
"""Orders at which the moments of a subsampled product are a finite sum: whole ones."""


def rdp(phases: Iterable[Phase]) -> tuple[Orders, Orders]:
    """Orders, and the run's RDP at each: budgets add over steps."""
    runs = coalesce(phases)
    plain = all(not parts_of(run.event)[1] for run in runs)
    orders = np.asarray(dp_rdp.DEFAULT_RDP_ORDERS, dtype=float) if plain else INTEGER_ORDERS
    if not is_private(runs):
        return orders, np.full_like(orders, np.inf)
    return orders, sum(
        (run.count * _step_rdp(run.event, run.rate, orders) for run in runs), np.zeros_like(orders)
    )


def rdp_epsilon(phases: Iterable[Phase], delta: float) -> float:
    """The smallest ε that RDP proves at δ."""
    orders, values = rdp(phases)
    if not values.any():
        return 0.0
    return float(dp_rdp.compute_epsilon(orders, values, delta)[0])


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
    return float(dp_rdp.compute_epsilon(orders, tuned + math.log(mean_tries) / (orders - 1), delta)[0])


def _poisson_extra(orders: Orders, values: Orders, mean: float) -> Orders:
    """mean · δ(ε = log(1 + 1/(a-1))) at each order a."""
    deltas = [dp_rdp.compute_delta(orders, values, math.log1p(1 / (order - 1)))[0] for order in orders]
    return mean * np.asarray(deltas, dtype=float)


def _negative_binomial_extra(orders: Orders, values: Orders, mean: float, *, shape: float) -> Orders:
    """(1 + shape) min over a of ((1 - 1/a) rdp(a) + log(1/γ) / a), the same at every order."""
    gamma = 1 / mean if shape else logarithmic_gamma(mean)
    return np.full_like(orders, (1 + shape) * np.min((1 - 1 / orders) * values - math.log(gamma) / orders))


def logarithmic_gamma(mean: float) -> float:
    """γ with (1/γ - 1) / log(1/γ) = mean, from below: a smaller γ costs more."""
    low, high = 1e-300, 1.0
    while high > low * (1 + 1e-12):
        middle = math.sqrt(low * high)
        too_few = middle == 1 or math.expm1(-math.log(middle)) / -math.log(middle) < mean
        low, high = (low, middle) if too_few else (middle, high)
    return low


def _step_rdp(event: Event, rate: float, orders: Orders) -> Orders:
    gaussian, selections = parts_of(event)
    if not selections:
        return _gaussian_rdp(gaussian, rate) if gaussian is not None else np.zeros_like(orders)
    largest = int(orders.max())
    moments = np.zeros(largest + 1)  # log E_Q[exp(k L)] of the product, for k = 0, 1, 2, ...
    ks = np.arange(largest + 1)
    if gaussian is not None:
        moments += ks * (ks - 1) / (2 * gaussian.noise_multiplier**2)
    for selection in selections:
        loss = group_loss(selection)
        moments += selection.groups * np.array([loss.log_mgf(k - 1) for k in ks])
    return np.array([_subsampled_moment(int(order), rate, moments) / (order - 1) for order in orders])


def _gaussian_rdp(gaussian: GaussianEvent, rate: float) -> Orders:
    accountant = dp_rdp.RdpAccountant()
    event = dp_event.GaussianDpEvent(gaussian.noise_multiplier)
    accountant.compose(dp_event.PoissonSampledDpEvent(rate, event))
    return np.asarray(accountant.rdp)


def _subsampled_moment(order: int, rate: float, moments: Orders) -> float:
    """log E_Q[(1 - q + q exp(L))^a] = log Σ_k C(a,k) (1-q)^(a-k) q^k E_Q[exp(k L)].

    The mirrored direction is smaller for a pair that a symmetry exchanges (Mironov et al. 2019, theorem 5).
    """
    if rate == 1:
        return float(moments[order])
    ks = np.arange(order + 1)
    weights = log_choose(order, ks) + (order - ks) * math.log1p(-rate) + ks * math.log(rate)
    return max(0.0, float(special.logsumexp(weights + moments[: order + 1])))

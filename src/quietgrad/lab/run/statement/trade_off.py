"""What no attack can beat: the trade-off between false alarms and missed members, and the one number μ for it.

    f(α) = inf { FNR of an attack with FPR ≤ α } ≥ sup_ε max(0, 1 − δ(ε) − e^ε α, e^(−ε) (1 − δ(ε) − α))

A run is μ-GDP if telling a record's presence is at least as hard as telling N(0, 1) from N(μ, 1) by one draw (Dong,
Roth and Su 2022). μ is computed from the run's privacy loss distribution, not from a limit theorem (Gomez et al. 2026).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gdpnum.converter import PLDConverter
from jaxtyping import Float64
from numpy import ndarray

from quietgrad.accounting.events import GaussianEvent, Phase
from quietgrad.accounting.pld import pld

FALSE_POSITIVE_RATES = (
    *(float(f"{rate:.3g}") for rate in np.geomspace(1e-6, 0.1, 21)),
    *(float(rate) for rate in np.round(np.arange(0.15, 1.0, 0.05), 2)),
)
"""Where the curve is stated: dense where a few false accusations are all that an attacker can afford."""

GRIDS = (1.0, 3.0, 0.3, 10.0)
"""Multiples of the first grid; gdpnum refuses some grids on which its own rounding shows."""


def step_for(epsilon: float) -> float:
    """Return a width of the loss grid that suits an ε."""
    return min(max(epsilon / 2000, 1e-5), 1e-3)


def mu_of(phases: Sequence[Phase], epsilon: float) -> float | None:
    """Return the smallest μ that can be proved for the run, ∞ without noise; None where it cannot be computed."""
    if math.isinf(epsilon):
        return math.inf
    if all(isinstance(phase.event, GaussianEvent) and phase.rate == 1 for phase in phases):
        return math.sqrt(sum(phase.count * _noise(phase) ** -2 for phase in phases))
    found = (_mu_on(phases, factor * step_for(epsilon)) for factor in GRIDS)
    return next((mu for mu in found if mu is not None), None)


def curve_of(phases: Sequence[Phase], epsilon: float) -> list[dict[str, float]]:
    """Return the trade-off curve of the run: for each false-positive rate the least false-negative rate."""
    if math.isinf(epsilon):
        return _points(lambda _: 0.0)
    losses = pld(phases, discretisation=step_for(epsilon))
    grid = np.linspace(0.0, 2 * epsilon + 1, 400)
    deltas = np.asarray(losses.get_delta_for_epsilon(grid), dtype=float)
    return _points(lambda alpha: _least_misses(alpha, grid, deltas))


def curve_of_pair(epsilon: float, delta: float) -> list[dict[str, float]]:
    """Return the curve of anything (ε, δ)-private of which no more is known."""
    return _points(lambda alpha: _least_misses(alpha, np.array([epsilon]), np.array([delta])))


def _mu_on(phases: Sequence[Phase], step: float) -> float | None:
    try:
        return float(PLDConverter(pld(phases, discretisation=step)).get_mu())
    except AssertionError:  # gdpnum's own check of its rounding
        return None


def _least_misses(alpha: float, grid: Float64[ndarray, " m"], deltas: Float64[ndarray, " m"]) -> float:
    steep, flat = 1 - deltas - np.exp(grid) * alpha, np.exp(-grid) * (1 - deltas - alpha)
    return float(max(0.0, steep.max(), flat.max()))


def _points(misses: Callable[[float], float]) -> list[dict[str, float]]:
    return [
        {"false_positive_rate": alpha, "false_negative_rate": misses(alpha)} for alpha in FALSE_POSITIVE_RATES
    ]


def _noise(phase: Phase) -> float:
    event: Any = phase.event
    return float(event.noise_multiplier)

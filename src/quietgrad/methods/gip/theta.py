"""How much a selector may care for the data: θ from the part of ε that the indices may cost."""

from __future__ import annotations

import math
from collections import Counter

import scipy
from scipy import special

from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import Phase
from quietgrad.accounting.planning import Steps
from quietgrad.methods.gip.mallows_event import MallowsSelection
from quietgrad.methods.gip.selection import Grouping, kept_of
from quietgrad.schedules import Schedule, value_at

CLOSE = 0.01
"""θ only divides the budget, which is then met exactly by calibrating σ: one percent is close enough."""

Kinds = list[tuple[MallowsSelection, int]]
"""Selections at θ = 1 with the number of steps that make them."""


def theta_for_budget(
    grouping: Grouping, keep: float | Schedule, batches: Steps, *, epsilon: float, delta: float
) -> float:
    """The θ, within 1%, for which the run's selections alone cost ε at δ; 0 for ε = 0 or nothing to choose.

    Coordinates left over by the grouping count as a whole group here.

    Args:
        keep: the part that is kept, over steps.
        epsilon: what the indices may cost on their own.
    """
    kinds = _kinds(grouping, keep, batches.steps)
    if epsilon == 0 or not kinds:
        return 0.0

    def cost(theta: float) -> float:
        phases = (Phase(event=_at(theta, kind), rate=batches.rate, count=count) for kind, count in kinds)
        return epsilon_of(phases, delta)

    theta = _gaussian_guess(kinds, batches.rate, epsilon, delta)
    # The cost is nearly proportional to θ.
    while not (1 - CLOSE) * epsilon <= (spent := cost(theta)) <= epsilon:
        theta *= (1 - CLOSE / 2) * epsilon / spent
    return theta


def _kinds(grouping: Grouping, keep: float | Schedule, steps: int) -> Kinds:
    size = min(grouping.group_size, grouping.coordinates)
    groups = math.ceil(grouping.coordinates / size)
    counts = Counter(kept_of(size, value_at(keep, step)) for step in range(steps))
    return [
        (MallowsSelection(theta=1.0, group_size=size, kept=kept, groups=groups), count)
        for kept, count in counts.items()
        if kept < size
    ]


def _at(theta: float, kind: MallowsSelection) -> MallowsSelection:
    return MallowsSelection(theta=theta, group_size=kind.group_size, kept=kind.kept, groups=kind.groups)


def _gaussian_guess(kinds: Kinds, rate: float, epsilon: float, delta: float) -> float:
    """θ as if the run were one Gaussian of mean μ = q·√(Σ 2ρ), with ρ = 4θ²·min(K, ℓ−K)·p(1−p)·ℓ/(ℓ−1) a group."""

    def excess(log_mean: float) -> float:
        mean = math.exp(log_mean)
        above = special.ndtr(-epsilon / mean + mean / 2)
        below = math.exp(epsilon) * special.ndtr(-epsilon / mean - mean / 2)
        return float(above - below) - delta

    mean = math.exp(scipy.optimize.brentq(excess, math.log(epsilon / 40), math.log(epsilon + 100)))
    return mean / (rate * math.sqrt(sum(2 * count * kind.groups * _unit_zcdp(kind) for kind, count in kinds)))


def _unit_zcdp(kind: MallowsSelection) -> float:
    smaller, share = min(kind.kept, kind.group_size - kind.kept), kind.kept / kind.group_size
    return 4 * smaller * share * (1 - share) * kind.group_size / (kind.group_size - 1)

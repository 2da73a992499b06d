"""Privacy loss distributions of whole runs: (epsilon, delta) from below and from above."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.losses import LossPmf, best_tilt, compose, delta_at, epsilon_at
from quietgrad.accounting.pairs import deviation, parts_of, step_loss

# A grid is fine enough once halving it moves epsilon by less than this share.
TOLERANCE = 1e-4
# Grids are halved at most this often, starting from 1/32 of one step's standard deviation.
HALVINGS = 6
COARSEST = 1 / 32
# The finest grid may have about this many points: above, RDP is the better estimate anyway.
MOST_POINTS = 2**23

Side = list[tuple[LossPmf, int]]


@dataclass(frozen=True, kw_only=True)
class PldEpsilon:
    """An epsilon of a run from its PLD, and whether a finer grid would still move it."""

    epsilon: float
    converged: bool


def pld(
    phases: Iterable[Phase], *, pessimistic: bool = True, discretisation: float = 1e-4
) -> PrivacyLossDistribution:
    """The run's privacy loss distribution as an object of dp-accounting.

    Args:
        phases: what was or will be released; every noise multiplier must be positive.
        pessimistic: True never under-states epsilon, False never over-states it.
        discretisation: width of the loss grid.
    """
    remove, add = (
        compose(side) for side in _sides(coalesce(phases), discretisation, pessimistic=pessimistic)
    )
    return PrivacyLossDistribution(_dense(remove), _dense(add))


def pld_epsilon(phases: Iterable[Phase], delta: float, *, tolerance: float = TOLERANCE) -> PldEpsilon:
    """The smallest epsilon at delta, on grids halved until it moves by less than `tolerance` of itself."""
    runs = coalesce(phases)
    if not runs:
        return PldEpsilon(epsilon=0.0, converged=True)
    if not is_private(runs):
        return PldEpsilon(epsilon=math.inf, converged=True)
    step = _first_step(runs)
    best = _epsilon_on(runs, delta, step)
    for _ in range(HALVINGS):
        step /= 2
        if _points(runs, step) > MOST_POINTS:
            break
        finer = min(best, _epsilon_on(runs, delta, step))
        if best - finer <= tolerance * finer or best == finer:
            return PldEpsilon(epsilon=finer, converged=True)
        best = finer
    return PldEpsilon(epsilon=best, converged=False)


def pld_delta(phases: Iterable[Phase], epsilon: float) -> float:
    """The smallest delta at epsilon, on grids halved until it moves by less than TOLERANCE of itself."""
    runs = coalesce(phases)
    if not runs:
        return 0.0
    if not is_private(runs):
        return 1.0
    step = _first_step(runs)
    best = _delta_on(runs, epsilon, step)
    for _ in range(HALVINGS):
        step /= 2
        if _points(runs, step) > MOST_POINTS:
            break
        finer = min(best, _delta_on(runs, epsilon, step))
        if best - finer <= TOLERANCE * finer:
            return finer
        best = finer
    return best


def is_private(phases: Iterable[Phase]) -> bool:
    """False if a release had no noise at all: then epsilon is infinite."""
    gaussians = (parts_of(phase.event)[0] for phase in phases if phase.count)
    return all(gaussian is None or gaussian.noise_multiplier > 0 for gaussian in gaussians)


def _epsilon_on(runs: tuple[Phase, ...], delta: float, step: float) -> float:
    return max(_side_epsilon(side, delta) for side in _sides(runs, step))


def _side_epsilon(side: Side, delta: float) -> float:
    tilted = compose(side, tilt=best_tilt(side, math.log(delta)))
    epsilon = epsilon_at(tilted, delta)
    if epsilon == tilted.lower * tilted.step:
        # The answer lies below the tilted window (delta is large): look at the whole distribution.
        return min(epsilon, epsilon_at(compose(side), delta))
    return epsilon


def _delta_on(runs: tuple[Phase, ...], epsilon: float, step: float) -> float:
    return max(delta_at(compose(side), epsilon) for side in _sides(runs, step))


def _sides(runs: tuple[Phase, ...], step: float, *, pessimistic: bool = True) -> tuple[Side, Side]:
    """Each phase's one-step loss with its count, for taking a record away and for its mirror."""
    losses = [(step_loss(run.event, run.rate, step, pessimistic=pessimistic), run.count) for run in runs]
    return [(loss.remove, count) for loss, count in losses], [(loss.add, count) for loss, count in losses]


def _first_step(runs: tuple[Phase, ...]) -> float:
    # The split adds at most step^2/4 of variance per step, so the grid follows the run's mean variance per
    # step.
    variance = sum(run.count * deviation(run.event, run.rate) ** 2 for run in runs)
    spread = math.sqrt(variance / sum(run.count for run in runs))
    return max(spread, 1e-12) * COARSEST


def _points(runs: tuple[Phase, ...], step: float) -> float:
    """About how many grid points one step's loss takes."""
    spread = max(deviation(run.event, 1.0) for run in runs)
    return spread * (20 + spread) / step


def _dense(pmf: LossPmf) -> DensePLDPmf:
    return DensePLDPmf(pmf.step, pmf.lower, pmf.mass, pmf.infinity, pmf.pessimistic)

"""Privacy loss distributions of whole runs: (ε, δ) from below and from above."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.pairs import deviation, reach
from quietgrad.accounting.privacy_loss import LossPmf, best_tilt, compose, delta_at, epsilon_at, found_at

TOLERANCE = 1e-4
"""A grid is fine enough once halving it moves ε by less than this share; its error is then about a third of that."""

LARGE_TOLERANCE = 1e-3
"""The same where one step's loss takes more than MANY_POINTS: finer grids would take seconds."""

MANY_POINTS = 2**17

COARSEST = 1 / 8
"""The first grid, as a share of one step's standard deviation."""

MOST_POINTS = 2**21
"""One step's loss may take about this many grid points: beyond, RDP has to do."""

SMALL_DELTA = 1e-8
"""Below this δ the rounding noise of the Fourier transform (about 1e-13 in all) shows: tilt the losses first."""

Side = list[tuple[LossPmf, int]]
"""One direction of a run: each phase's one-step loss with its count."""


@dataclass(frozen=True, kw_only=True)
class PldEpsilon:
    """An ε of a run from its PLD, and whether a finer grid would still move it."""

    epsilon: float
    converged: bool


def pld(phases: Iterable[Phase], *, pessimistic: bool = True, discretisation: float = 1e-4) -> Any:
    """Return the run's privacy loss distribution as an object of dp-accounting.

    Args:
        phases: what was or will be released; every noise multiplier must be positive.
        pessimistic: True never under-states ε, False never over-states it.
        discretisation: width of the loss grid.

    Returns:
        both directions. Checked by: tests/accounting/test_laws_of_the_accountant.py
    """
    remove, add = (
        compose(side) for side in _sides(coalesce(phases), discretisation, pessimistic=pessimistic)
    )
    # Here, since training needs no dp-accounting and importing it takes as long as all of quietgrad.
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    return PrivacyLossDistribution(_dense(remove), _dense(add))


def pld_epsilon(phases: Iterable[Phase], delta: float, *, tolerance: float = TOLERANCE) -> PldEpsilon:
    """Find the smallest ε at δ, on grids halved until it moves by less than `tolerance` of itself."""
    runs = coalesce(phases)
    if not runs:
        return PldEpsilon(epsilon=0.0, converged=True)
    if not is_private(runs):
        return PldEpsilon(epsilon=math.inf, converged=True)
    value, converged = _refine(runs, tolerance, lambda step: _epsilon_on(runs, delta, step))
    return PldEpsilon(epsilon=value, converged=converged and math.isfinite(value))


def pld_delta(phases: Iterable[Phase], epsilon: float, *, tolerance: float = TOLERANCE) -> float:
    """Find the smallest δ at ε, on grids halved until it moves by less than `tolerance` of itself."""
    runs = coalesce(phases)
    if not runs:
        return 0.0
    if not is_private(runs):
        return 1.0
    return _refine(runs, tolerance, lambda step: _delta_on(runs, epsilon, step))[0]


def pld_found(phases: Iterable[Phase], false_positives: float, *, tolerance: float = TOLERANCE) -> float:
    """Bound the share of members that a test finds which accuses at most so many others."""
    runs = coalesce(phases)
    if not runs:
        return false_positives
    if not is_private(runs):
        return 1.0
    return _refine(runs, tolerance, lambda step: _found_on(runs, false_positives, step))[0]


def is_private(phases: Iterable[Phase]) -> bool:
    """Whether every release had noise; ε is infinite if one had none."""
    return all(phase.event.is_private for phase in phases if phase.count)


def _refine(runs: tuple[Phase, ...], tolerance: float, on: Callable[[float], float]) -> tuple[float, bool]:
    """Evaluate an upper bound `on(step)` on finer and finer grids: (value, whether it stopped moving)."""
    finest = max(reach(run.event.spread, run.rate) for run in runs) / MOST_POINTS
    step = max(_spread(runs) * COARSEST, finest, 1e-15)
    best = on(step)
    while step / 2 >= finest:
        step /= 2
        finer = min(best, on(step))
        large = step < finest * MOST_POINTS / MANY_POINTS
        if best == finer or best - finer <= (max(tolerance, LARGE_TOLERANCE) if large else tolerance) * finer:
            return finer, True
        best = finer
    return best, False


def _epsilon_on(runs: tuple[Phase, ...], delta: float, step: float) -> float:
    return max(_side_epsilon(side, delta) for side in _sides(runs, step))


def _side_epsilon(side: Side, delta: float) -> float:
    if delta >= SMALL_DELTA:
        return epsilon_at(compose(side), delta)
    # Half of the Chernoff order lowers the noise to 1e-13 δ^(3/4) and keeps skewed sums in a small window.
    return epsilon_at(compose(side, tilt=best_tilt(side, math.log(delta)) / 2), delta)


def _delta_on(runs: tuple[Phase, ...], epsilon: float, step: float) -> float:
    return max(delta_at(compose(side), epsilon) for side in _sides(runs, step))


def _found_on(runs: tuple[Phase, ...], false_positives: float, step: float) -> float:
    """Bound the true positives at a false-positive rate, whichever neighbour is the one to be recognised.

    For every ε each direction s has TPR ≤ e^ε FPR + δ_s(ε), and its complement 1 − FPR ≤ e^ε (1 − TPR) + δ_s(ε). One
    role takes the first from one direction and the second from the other, so each is bounded over both directions.
    """
    bounds = [found_at(compose(side), false_positives) for side in _sides(runs, step)]
    direct = max(bound for bound, _ in bounds)
    complement = max(bound for _, bound in bounds)
    return min(direct, complement, 1.0)


def _sides(runs: tuple[Phase, ...], step: float, *, pessimistic: bool = True) -> tuple[Side, Side]:
    """Return each phase's one-step loss with its count, for taking a record away and for its mirror."""
    losses = [(run.event.step_loss(run.rate, step, pessimistic=pessimistic), run.count) for run in runs]
    return [(loss.remove, count) for loss, count in losses], [(loss.add, count) for loss, count in losses]


def _spread(runs: tuple[Phase, ...]) -> float:
    # The split adds at most step²/4 of variance per step: the grid follows the run's mean variance per step.
    variance = sum(run.count * deviation(run.event.spread, run.rate) ** 2 for run in runs)
    return math.sqrt(variance / sum(run.count for run in runs))


def _dense(pmf: LossPmf) -> Any:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    return DensePLDPmf(pmf.step, pmf.lower, pmf.mass, pmf.infinity, pmf.pessimistic)

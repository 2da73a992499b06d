"""Find the smallest noise, the most steps or the largest rate for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Protocol, TypeVar, runtime_checkable

from quietgrad.accounting.base import Event
from quietgrad.accounting.deltas import warn_delta
from quietgrad.accounting.evaluate import Accountant
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.planning import (
    Planned,
    Priced,
    Steps,
    after_training,
    bill,
    charge_of,
    plan,
    whole_plan,
)
from quietgrad.accounting.pld import TOLERANCE
from quietgrad.accounting.targets import EpsilonTarget, Target, target_of

RESOLUTION = 1e-5
"""Relative width at which the search for a noise multiplier or a rate stops."""

MOST_NOISE = 1e7
"""Beyond this multiplier the remaining ε does not come from the Gaussian noise."""

LEAST_NOISE = 0.05
"""Below it a run is as good as unprotected: calibration goes no further down."""

ANY_GRID = 1.0
"""The tolerance of a rough answer: the first two grids, whatever they say. They never under-state ε."""

ROUGH_RESOLUTION = 1e-3
"""Where the search on the rough grids stops: about what they over-state."""

ROUGH_ERROR = 0.004
"""How far below the rough answer the exact one mostly lies: the first guess of the fine bracket."""

WIDEN = 0.97
"""The step down where it lies lower still; each costs one evaluation on the fine grid, so not smaller."""

LEAST_SHARE = 0.02
"""No guess is nearer to an end of the bracket than this share of it: regula falsi alone may stall at one end."""

OVERSHOOT = 0.4
"""How far, in units of the resolution, a guess steps over the root: below 1/2, so that the two ends that enclose the
root are then less than the resolution apart."""


@runtime_checkable
class Population(Protocol):
    """Batches that know how many records, or users, they are drawn from."""

    @property
    def units(self) -> int: ...


class Calibratable(Planned, Protocol):
    """A mechanism whose noise can be set."""

    def with_noise(self: M, noise_multiplier: float) -> M: ...
    def for_budget(self: M, batches: Steps, *, epsilon: float, delta: float) -> M: ...


M = TypeVar("M", bound="Calibratable")


def calibrate(
    mechanism: M,
    batches: Steps,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    false_positives: float | None = None,
    found: float | None = None,
) -> M:
    """Set the smallest noise multiplier whose whole run stays within a target.

    The target is (ε, δ), or a bound on every membership attack: its advantage, or how many members it finds.

    Args:
        mechanism: what each step releases, or a program of statistics and training; its own noise multiplier is
            ignored.
        batches: say how many steps there are and what each of them costs.
        epsilon: the target; the result lies below it, within 1e-4 of it.
        delta: in (0, 0.1), below 1 / records.
        advantage: instead of ε and δ, the most that members may be found more often than others are accused.
        false_positives: instead of ε and δ, the share of others that an attack may accuse wrongly.
        found: the share of members that such an attack may find.

    Returns:
        the mechanism, or the program, with that noise.
        Checked by: tests/accounting/test_calibrate.py, tests/accounting/test_participation.py,
        tests/accounting/test_attack_risk.py

    Raises:
        ValueError: a target is out of range, or not exactly one is given, or no noise is enough for what does not come
            from it.
    """
    target = target_of(
        epsilon=epsilon, delta=delta, advantage=advantage, false_positives=false_positives, found=found
    )
    if delta is not None and isinstance(batches, Population):
        warn_delta(delta, batches.units)
    share, beside = target.budget
    mechanism = mechanism.for_budget(batches, epsilon=share, delta=beside)

    def whole(noise_multiplier: float) -> tuple[Phase, ...]:
        return whole_plan(mechanism.with_noise(noise_multiplier), batches)

    # Which steps are alike does not depend on the amount of noise. So ask for one event a phase while searching, and
    # check at the end that it was so: a plan of 100,000 events for each noise tried would take minutes.
    pattern = bill(mechanism.with_noise(1.0), batches)

    def short(noise_multiplier: float) -> tuple[Phase, ...]:
        calibrated = mechanism.with_noise(noise_multiplier)
        phases = [*calibrated.before(batches)]
        for phase, first in zip(pattern.phases, pattern.firsts, strict=True):
            charge = charge_of(batches, calibrated.event(first), first)
            phases.append(Phase(event=charge.event, rate=charge.rate, count=phase.count))
        return coalesce([*phases, *after_training(calibrated, batches)])

    noise_multiplier = noise_within(short, target)
    if short(noise_multiplier) != whole(noise_multiplier):
        noise_multiplier = noise_within(whole, target)
    return mechanism.with_noise(noise_multiplier)


def smallest_noise(
    runs: Callable[[float], tuple[Phase, ...]],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "best",
) -> float:
    """Find the smallest noise multiplier whose run `runs(noise_multiplier)` costs at most ε at δ.

    Returns:
        the multiplier.
    """
    return noise_within(runs, EpsilonTarget(epsilon=epsilon, delta=delta, accountant=accountant))


def noise_within(runs: Callable[[float], tuple[Phase, ...]], target: Target) -> float:
    """Find the smallest noise multiplier whose run stays within a target."""
    return _smallest(
        lambda noise, tolerance: target.cost(runs(noise), tolerance),
        target.most,
        start=1.0,
        least=LEAST_NOISE,
        most=MOST_NOISE,
        name="noise_multiplier",
        of=target.name,
    )


def rate_within(
    mechanism: Priced, steps: int, *, epsilon: float, delta: float, accountant: Accountant = "best"
) -> float:
    """Find the largest Poisson rate whose run of `steps` steps costs at most ε at δ.

    Returns:
        the rate.
    """
    EpsilonTarget(epsilon=epsilon, delta=delta)  # refuses what is out of range

    def cost(inverse_rate: float, tolerance: float) -> float:
        runs = plan(mechanism, 1 / inverse_rate, steps)
        return epsilon_of(runs, delta, tolerance=tolerance, accountant=accountant)

    if cost(1.0, TOLERANCE) <= epsilon:
        return 1.0
    return 1 / _smallest(cost, epsilon, start=2.0, least=1.0, most=1e8, name="1 / rate")


def steps_within(
    mechanism: Priced,
    rate: float,
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "best",
    most: int = 10**6,
) -> int:
    """Find the largest number of Poisson steps, at most `most`, whose run costs at most ε at δ.

    Returns:
        the number of steps.

    Raises:
        ValueError: not even one step costs at most ε.
    """
    EpsilonTarget(epsilon=epsilon, delta=delta)  # refuses what is out of range
    events: list[Event] = []

    def cost(steps: int, tolerance: float) -> float:
        events.extend(mechanism.event(step) for step in range(len(events), steps))
        runs = groupby(events[:steps])
        phases = coalesce(Phase(event=event, rate=rate, count=len(list(same))) for event, same in runs)
        return epsilon_of(phases, delta, tolerance=tolerance, accountant=accountant)

    if cost(1, TOLERANCE) > epsilon:
        raise ValueError(
            f"Expected an epsilon that covers at least one step, got {epsilon:g}; one step costs "
            f"{cost(1, TOLERANCE):.4g}. Add noise, lower the rate, or raise epsilon."
        )
    safe = _last_within(lambda steps: cost(steps, ANY_GRID) <= epsilon, 0, 1, most)
    return _last_within(lambda steps: cost(steps, TOLERANCE) <= epsilon, safe, max(safe // 512, 1), most)


def _last_within(fits: Callable[[int], bool], low: int, stride: int, most: int) -> int:
    """Find the largest number up to `most` that fits, given that `low` does: strides that double, then halve."""
    high = low + stride
    while high <= most and fits(high):
        low, stride = high, 2 * stride
        high = low + stride
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _smallest(
    cost: Callable[[float, float], float],
    epsilon: float,
    *,
    start: float,
    least: float,
    most: float,
    name: str,
    of: str = "epsilon",
) -> float:
    """Find the smallest x with cost(x, tolerance) ≤ ε, for a cost that falls with x; `least` if that fits.

    What is said of ε holds for the risks of other targets too.

    Two searches: on rough grids, which are fast and never under-state ε, then on fine grids near what they found.
    """

    def roughly(x: float) -> float:
        return cost(x, ANY_GRID)

    def exactly(x: float) -> float:
        return cost(x, TOLERANCE)

    # A coarse grid never under-states ε: what it accepts is safe and close, only the end needs a fine one.
    high = start
    while roughly(high) > epsilon:
        high *= 2
        if high > most:
            raise ValueError(
                f"Expected a target of {of} that some {name} can meet, got {epsilon:g}: at {name}={high:.0e} the run "
                f"still costs {roughly(high):.4g}. That rest is not the Gaussian noise's: lower theta, take fewer "
                f"steps, or raise {of}."
            )
    low = high / 2
    while low > least and roughly(low) <= epsilon:
        low, high = low / 2, low
    if low <= least and exactly(least) <= epsilon:
        return least
    high = _search(roughly, epsilon, max(low, least), high, resolution=ROUGH_RESOLUTION)
    low = max(high * (1 - ROUGH_ERROR), least)
    while exactly(low) <= epsilon:
        low, high = max(low * WIDEN, least), low
    return _search(exactly, epsilon, low, high, resolution=RESOLUTION)


def _search(
    cost: Callable[[float], float], epsilon: float, low: float, high: float, *, resolution: float
) -> float:
    """Narrow a bracket to 1 + resolution and return its end `high`: regula falsi on log ε over log noise.

    `low` is taken to cost too much and `high` to fit; what is returned is `high` or was checked to fit.
    """
    below, above = _excess(cost(low), epsilon), _excess(cost(high), epsilon)
    while high > low * (1 + resolution):
        share = below / (below - above) if below > above else 0.5
        share = min(max(share, LEAST_SHARE), 1 - LEAST_SHARE)
        guess = low * (high / low) ** share
        # Step over the root, on the side of the end that is farther away, so that both ends close in.
        guess *= 1 + OVERSHOOT * resolution * (1 if guess * guess < low * high else -1)
        value = _excess(cost(guess), epsilon)
        if value > 0:
            low, below = guess, value
        else:
            high, above = guess, value
    return high


def _excess(cost: float, epsilon: float) -> float:
    return math.log(max(cost, 1e-300) / epsilon)

"""The smallest noise for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Protocol, TypeVar

from quietgrad.accounting.evaluate import Accountant, check_delta
from quietgrad.accounting.events import Event, Phase, coalesce
from quietgrad.accounting.pld import TOLERANCE, pld_epsilon
from quietgrad.accounting.rdp import rdp_epsilon

# Relative width at which the search for a noise multiplier or a rate stops.
RESOLUTION = 1e-5
# Beyond this multiplier what is left of epsilon does not come from the Gaussian noise.
MOST_NOISE = 1e7
# Below it a run is as good as unprotected: calibration goes no further down.
LEAST_NOISE = 0.05


class Steps(Protocol):
    """What calibration reads from `PoissonBatches`."""

    @property
    def rate(self) -> float: ...
    @property
    def steps(self) -> int: ...


class Priced(Protocol):
    """A mechanism that says what its steps cost."""

    def event(self, step: int) -> Event: ...


class Calibratable(Priced, Protocol):
    """A mechanism whose noise can be set."""

    def with_noise(self: M, noise_multiplier: float) -> M: ...


M = TypeVar("M", bound="Calibratable")


def plan(mechanism: Priced, rate: float, steps: int) -> tuple[Phase, ...]:
    """The run as phases: equal neighbouring events counted together."""
    runs = groupby(mechanism.event(step) for step in range(steps))
    return coalesce(Phase(event=event, rate=rate, count=len(list(same))) for event, same in runs)


def calibrate(mechanism: M, batches: Steps, *, epsilon: float, delta: float) -> M:
    """The mechanism with the smallest noise multiplier whose run stays within (epsilon, delta).

    Args:
        mechanism: what each step releases; its own noise multiplier is ignored.
        batches: gives the Poisson rate and the number of steps.
        epsilon: the target; the result lies below it, within 1e-4 of it.
        delta: in (0, 1).
    """

    def whole(noise_multiplier: float) -> tuple[Phase, ...]:
        return plan(mechanism.with_noise(noise_multiplier), batches.rate, batches.steps)

    def short(noise_multiplier: float) -> tuple[Phase, ...]:
        calibrated, done = mechanism.with_noise(noise_multiplier), 0
        phases = []
        for phase in pattern:
            phases.append(Phase(event=calibrated.event(done), rate=phase.rate, count=phase.count))
            done += phase.count
        return coalesce(phases)

    # Which steps are alike does not depend on the amount of noise: ask for one event a phase, then check it
    # was so.
    pattern = whole(1.0)
    noise_multiplier = smallest_noise(short, epsilon=epsilon, delta=delta)
    if short(noise_multiplier) != whole(noise_multiplier):
        noise_multiplier = smallest_noise(whole, epsilon=epsilon, delta=delta)
    return mechanism.with_noise(noise_multiplier)


def smallest_noise(
    runs: Callable[[float], tuple[Phase, ...]],
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = "best",
) -> float:
    """The smallest noise multiplier whose run `runs(noise_multiplier)` costs at most epsilon at delta."""
    _check_target(epsilon, delta)
    return _smallest(
        lambda noise, tolerance: cost_of(runs(noise), delta, tolerance=tolerance, accountant=accountant),
        epsilon,
        start=1.0,
        least=LEAST_NOISE,
        most=MOST_NOISE,
        name="noise_multiplier",
    )


def rate_within(
    mechanism: Priced, steps: int, *, epsilon: float, delta: float, accountant: Accountant = "best"
) -> float:
    """The largest Poisson rate whose run of `steps` steps costs at most epsilon at delta."""
    _check_target(epsilon, delta)

    def cost(inverse_rate: float, tolerance: float) -> float:
        runs = plan(mechanism, 1 / inverse_rate, steps)
        return cost_of(runs, delta, tolerance=tolerance, accountant=accountant)

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
    """The largest number of steps, at most `most`, whose run costs at most epsilon at delta."""
    _check_target(epsilon, delta)
    events: list[Event] = []

    def cost(steps: int, tolerance: float) -> float:
        events.extend(mechanism.event(step) for step in range(len(events), steps))
        runs = groupby(events[:steps])
        phases = coalesce(Phase(event=event, rate=rate, count=len(list(same))) for event, same in runs)
        return cost_of(phases, delta, tolerance=tolerance, accountant=accountant)

    if cost(1, TOLERANCE) > epsilon:
        raise ValueError(
            f"Expected an epsilon that covers at least one step, got {epsilon:g}; one step costs "
            f"{cost(1, TOLERANCE):.4g}. Add noise, lower the rate, or raise epsilon."
        )
    safe = _last_within(lambda steps: cost(steps, 1.0) <= epsilon, 0, 1, most)
    return _last_within(lambda steps: cost(steps, TOLERANCE) <= epsilon, safe, max(safe // 512, 1), most)


def _last_within(fits: Callable[[int], bool], low: int, stride: int, most: int) -> int:
    """The largest number up to `most` that fits, given that `low` does: strides that double, then halve."""
    high = low + stride
    while high <= most and fits(high):
        low, stride = high, 2 * stride
        high = low + stride
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def cost_of(
    phases: tuple[Phase, ...], delta: float, *, tolerance: float = TOLERANCE, accountant: Accountant = "best"
) -> float:
    """Epsilon as `epsilon()` reports it, without asking RDP where the PLD is already exact."""
    if accountant == "rdp":
        return rdp_epsilon(phases, delta)
    tight = pld_epsilon(phases, delta, tolerance=tolerance)
    if tight.converged or accountant == "pld":
        return tight.epsilon
    return min(tight.epsilon, rdp_epsilon(phases, delta))


def _smallest(
    cost: Callable[[float, float], float],
    epsilon: float,
    *,
    start: float,
    least: float,
    most: float,
    name: str,
) -> float:
    """The smallest x with cost(x, tolerance) <= epsilon, for a cost that falls with x; `least` if that fits."""

    def roughly(x: float) -> float:
        return cost(x, 1.0)

    def exactly(x: float) -> float:
        return cost(x, TOLERANCE)

    # A coarse grid never under-states epsilon: what it accepts is safe and close, only the end needs a fine one.
    high = start
    while roughly(high) > epsilon:
        high *= 2
        if high > most:
            raise ValueError(
                f"Expected an epsilon that some {name} can meet, got {epsilon:g}: at {name}={high:.0e} the run "
                f"still costs {roughly(high):.4g}. That rest is not the Gaussian noise's: lower theta, take fewer "
                "steps, or raise epsilon."
            )
    low = high / 2
    while low > least and roughly(low) <= epsilon:
        low, high = low / 2, low
    if low <= least and exactly(least) <= epsilon:
        return least
    high = _search(roughly, epsilon, max(low, least), high, resolution=1e-3)
    low = max(high * (1 - 0.004), least)
    while exactly(low) <= epsilon:
        low, high = max(low * 0.97, least), low
    return _search(exactly, epsilon, low, high, resolution=RESOLUTION)


def _search(
    cost: Callable[[float], float], epsilon: float, low: float, high: float, *, resolution: float
) -> float:
    """The end `high` of a bracket narrowed to 1 + resolution: regula falsi on log epsilon over log noise.

    `low` is taken to cost too much and `high` to fit; what is returned is `high` or was checked to fit.
    """
    below, above = _excess(cost(low), epsilon), _excess(cost(high), epsilon)
    while high > low * (1 + resolution):
        share = min(max(below / (below - above), 0.02), 0.98) if below > above else 0.5
        guess = low * (high / low) ** share
        # Step over the root, on the side of the end that is farther away, so that both ends close in.
        guess *= 1 + 0.4 * resolution * (1 if guess * guess < low * high else -1)
        value = _excess(cost(guess), epsilon)
        if value > 0:
            low, below = guess, value
        else:
            high, above = guess, value
    return high


def _excess(cost: float, epsilon: float) -> float:
    return math.log(max(cost, 1e-300) / epsilon)


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"Expected epsilon > 0 and finite, got {epsilon}. Pass the budget the run may spend."
        )

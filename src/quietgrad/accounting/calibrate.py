"""The smallest noise for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Protocol, TypeVar

from quietgrad.accounting.evaluate import check_delta
from quietgrad.accounting.events import Event, Phase, coalesce
from quietgrad.accounting.pld import pld_epsilon
from quietgrad.accounting.rdp import rdp_epsilon

# Relative width at which the search for a noise multiplier or a rate stops.
RESOLUTION = 1e-5
# Beyond this multiplier what is left of epsilon does not come from the Gaussian noise.
MOST_NOISE = 1e7
# Below it a run is as good as unprotected: calibration goes no further down.
LEAST_NOISE = 0.02


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


def smallest_noise(runs: Callable[[float], tuple[Phase, ...]], *, epsilon: float, delta: float) -> float:
    """The smallest noise multiplier whose run `runs(noise_multiplier)` costs at most epsilon at delta."""
    _check_target(epsilon, delta)

    def cost(noise_multiplier: float) -> float:
        return cost_of(runs(noise_multiplier), delta)

    low, high = _bracket(cost, epsilon)
    if low == 0:
        return high
    return _search(cost, epsilon, low, high)


def steps_within(mechanism: Priced, rate: float, *, epsilon: float, delta: float, most: int = 10**6) -> int:
    """The largest number of steps, at most `most`, whose run costs at most epsilon at delta."""
    _check_target(epsilon, delta)
    events: list[Event] = []

    def fits(steps: int) -> bool:
        events.extend(mechanism.event(step) for step in range(len(events), steps))
        runs = groupby(events[:steps])
        phases = coalesce(Phase(event=event, rate=rate, count=len(list(same))) for event, same in runs)
        return cost_of(phases, delta) <= epsilon

    if not fits(1):
        raise ValueError(
            f"Expected a run of at least one step within epsilon={epsilon:g}, got epsilon="
            f"{cost_of(plan(mechanism, rate, 1), delta):.4g} for one step. Add noise, lower the rate, "
            "or raise epsilon."
        )
    low, high = 1, 2
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def rate_within(mechanism: Priced, steps: int, *, epsilon: float, delta: float) -> float:
    """The largest Poisson rate whose run of `steps` steps costs at most epsilon at delta."""
    _check_target(epsilon, delta)

    def cost(rate: float) -> float:
        return cost_of(plan(mechanism, rate, steps), delta)

    if cost(1.0) <= epsilon:
        return 1.0
    low, high = 1.0, 1.0
    while cost(low) > epsilon:
        low, high = low / 4, low
        if low < 1e-9:
            raise ValueError(
                f"Expected a rate that keeps {steps} steps within epsilon={epsilon:g}, got none above 1e-9. "
                "Add noise, take fewer steps, or raise epsilon."
            )
    while high > low * (1 + RESOLUTION):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if cost(middle) <= epsilon else (low, middle)
    return low


def cost_of(phases: tuple[Phase, ...], delta: float) -> float:
    """Epsilon as `epsilon()` reports it, without asking RDP where the PLD is already exact."""
    tight = pld_epsilon(phases, delta)
    return tight.epsilon if tight.converged else min(tight.epsilon, rdp_epsilon(phases, delta))


def _bracket(cost: Callable[[float], float], epsilon: float) -> tuple[float, float]:
    """Two multipliers, the first too small, the second large enough; (0, least) if hardly any is needed."""
    high = 1.0
    if cost(high) <= epsilon:
        while high > LEAST_NOISE:
            if cost(high / 2) > epsilon:
                return high / 2, high
            high /= 2
        return 0.0, high
    while high < MOST_NOISE:
        if cost(2 * high) <= epsilon:
            return high, 2 * high
        high *= 2
    raise ValueError(
        f"Expected an epsilon that some noise can meet, got {epsilon:g}: with "
        f"noise_multiplier={high:.0e} the run "
        f"still costs {cost(high):.4g}. What remains is not Gaussian: lower theta, take fewer steps, or "
        "raise epsilon."
    )


def _search(cost: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Regula falsi on log epsilon over log noise, nearly a line; returns a multiplier that was checked."""
    below, above = math.log(cost(low) / epsilon), math.log(max(cost(high), 1e-300) / epsilon)
    while high > low * (1 + RESOLUTION):
        share = min(max(below / (below - above), 0.02), 0.98)
        # Aim a little to the safe side, so that both ends close in.
        aim = 0.3 * RESOLUTION if share < 0.9 else -0.3 * RESOLUTION
        guess = low * (high / low) ** share * (1 + aim)
        guess = min(max(guess, low * (1 + RESOLUTION / 4)), high * (1 - RESOLUTION / 4))
        value = math.log(max(cost(guess), 1e-300) / epsilon)
        if value > 0:
            low, below = guess, value
        else:
            high, above = guess, value
    return high


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(
            f"Expected epsilon > 0 and finite, got {epsilon}. Pass the budget the run may spend."
        )

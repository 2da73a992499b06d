"""A run as phases: sampler and mechanism together say what each step is charged, a bill adds the charges up.

The mechanism knows what a step releases (an event). Only the sampler knows how often a record takes part. Plan and
ledger add up the same charges by the same rule, so they agree at the end of a run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol, overload, runtime_checkable

from quietgrad._errors import PrivacyError
from quietgrad.accounting.base import Event
from quietgrad.accounting.events import Phase, checked_rate, coalesce, whole_number

AFTER = "after"
"""Key of a ledger's description: what is released after the last step, by name."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What one step costs each record that may take part in it: one line of the ledger.

    Args:
        event: what the step releases.
        rate: the probability with which each of these records takes part.
        group: the number of the group of records that may take part; None for all records. A record is in one group,
            and stays there over resumes.
        partition: names how records are divided into groups. Only charges of one partition share what they cost.
        separation: in how many steps in a row, of an uninterrupted run, a record takes part at most once.

    Raises:
        ValueError: the rate is not in (0, 1].
        PrivacyError: the event covers records that take part less often than these.

    Example:
        charge = qg.accounting.Charge(event=gaussian, rate=0.01)
    """

    event: Event
    rate: float
    group: int | None = None
    partition: str = ""
    separation: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checked_rate(self.rate))
        if self.event.separation > self.separation:
            raise PrivacyError(
                f"Noise of {self.event.separation} bands covers a record once in {self.event.separation} steps, and "
                f"these batches may draw it once in {self.separation}. Pass groups={self.event.separation} to "
                "PoissonBatches or PoissonSampler."
            )


class Bill:
    """Add up charges to phases that cover every record.

    A record pays the charges of its own group and those of all records. For each event, rate and partition the bill
    counts the latter, and the former in the group that has most of them.

    Guarantee: whatever its group, the charges of a record are among the phases.
    Checked by: tests/accounting/test_participation.py

    Attributes:
        charges: how many were added.
    """

    def __init__(self) -> None:
        self.charges = 0
        self._used = Counter[tuple[Event, float, str, int]]()
        self._most = Counter[tuple[Event, float, str]]()
        self._runs: list[tuple[Event, float, int, int]] = []
        self._exclusive: Event | None = None

    def grows_by(self, charge: Charge) -> bool:
        """Whether this charge would cost more than what is on the bill."""
        if charge.group is None:
            return True
        used = self._used[charge.event, charge.rate, charge.partition, charge.group]
        return used == self._most[charge.event, charge.rate, charge.partition]

    def add(self, charge: Charge) -> None:
        """Add what a step costs.

        Raises:
            PrivacyError: the event prices several steps together, and others on the bill are priced otherwise.
        """
        self.check(charge)
        grows = self.grows_by(charge)
        if charge.group is not None:
            self._used[charge.event, charge.rate, charge.partition, charge.group] += 1
            self._most[charge.event, charge.rate, charge.partition] += grows
        if grows:
            self._count(charge)
        if charge.event.is_exclusive:
            self._exclusive = charge.event
        self.charges += 1

    def check(self, charge: Charge) -> None:
        """Refuse a charge that cannot be on one bill with the others.

        Raises:
            PrivacyError: the event prices several steps together, and others on the bill are priced otherwise.
        """
        event = charge.event
        if event.is_exclusive and self._exclusive not in (None, event):
            raise PrivacyError(
                "Steps in which records take part once in a block are priced together, and these have different noise: "
                f"{self._exclusive} and {event}. Keep the noise the same over the run, or draw Poisson batches."
            )

    def _count(self, charge: Charge) -> None:
        if self._runs and self._runs[-1][:2] == (charge.event, charge.rate):
            _, _, count, first = self._runs[-1]
            self._runs[-1] = (charge.event, charge.rate, count + 1, first)
        else:
            self._runs.append((charge.event, charge.rate, 1, self.charges))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What was charged, equal neighbours counted together."""
        return tuple(Phase(event=event, rate=rate, count=count) for event, rate, count, _ in self._runs)

    @property
    def firsts(self) -> tuple[int, ...]:
        """For each phase, the number of the charge that opened it."""
        return tuple(first for *_, first in self._runs)


@runtime_checkable
class Steps(Protocol):
    """What calibration reads from batches: q and the number of steps."""

    @property
    def rate(self) -> float: ...
    @property
    def steps(self) -> int: ...


@runtime_checkable
class Participation(Steps, Protocol):
    """Batches that say what a step costs, given what it releases."""

    def charge(self, event: Event, step: int) -> Charge: ...


@runtime_checkable
class Priced(Protocol):
    """A mechanism that says what its steps release."""

    def event(self, step: int) -> Event: ...


class Planned(Priced, Protocol):
    """A mechanism, or a program that releases something before the first step."""

    def before(self, batches: Steps) -> tuple[Phase, ...]: ...


@runtime_checkable
class PlannedAfter(Protocol):
    """A program that may release something after the last step."""

    def afterwards(self, batches: Steps) -> tuple[Phase, ...]: ...


@dataclass(frozen=True)
class PoissonSteps:
    """Steps that draw each record on its own, with probability q."""

    rate: float
    steps: int


def charge_of(batches: Steps, event: Event, step: int) -> Charge:
    """Return what a step costs; that of a Poisson draw if all that batches say is their rate."""
    if isinstance(batches, Participation):
        return batches.charge(event, step)
    return Charge(event=event, rate=batches.rate)


def bill(mechanism: Priced, batches: Steps) -> Bill:
    """Add up the charges of all steps."""
    total = Bill()
    for step in range(batches.steps):
        total.add(charge_of(batches, mechanism.event(step), step))
    return total


@overload
def plan(mechanism: Priced, batches: Steps) -> tuple[Phase, ...]: ...
@overload
def plan(mechanism: Priced, batches: float, steps: int) -> tuple[Phase, ...]: ...
@overload
def plan(mechanism: Priced, *, rate: float, steps: int) -> tuple[Phase, ...]: ...
def plan(
    mechanism: Priced,
    batches: Steps | float | None = None,
    steps: int | None = None,
    *,
    rate: float | None = None,
) -> tuple[Phase, ...]:
    """Make a run into phases, equal neighbouring events counted together.

    Args:
        mechanism: says what each step releases.
        batches: PoissonBatches or another sampler, which says what that costs. A number is the rate of Poisson draws.
        steps: how many, with a rate.
        rate: of Poisson draws, by its name in 0.2.

    Returns:
        what every record pays at most.

    Raises:
        ValueError: there are neither batches nor a rate and a number of steps.
    """
    if isinstance(batches, Steps):
        return bill(mechanism, batches).phases
    rate = rate if batches is None else batches
    if rate is None or steps is None:
        raise ValueError(
            f"Expected batches, or a rate and steps, got rate={rate} and steps={steps}. Pass the batches that training "
            "iterates over."
        )
    return bill(mechanism, PoissonSteps(checked_rate(rate), whole_number("steps", steps, 0))).phases


def whole_plan(mechanism: Planned, batches: Steps) -> tuple[Phase, ...]:
    """Return what is released before the steps, the steps, and what is released after them."""
    return coalesce(
        [*mechanism.before(batches), *plan(mechanism, batches), *after_training(mechanism, batches)]
    )


def after_training(mechanism: Planned, batches: Steps) -> tuple[Phase, ...]:
    """Return what is released after the last step: nothing, unless a program plans it."""
    return mechanism.afterwards(batches) if isinstance(mechanism, PlannedAfter) else ()

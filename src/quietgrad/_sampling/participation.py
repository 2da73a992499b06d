"""How records take part in steps: who is drawn, and what that costs.

Formal guarantee: who is drawn depends on the numbers of records and on fresh random bits, never on what records hold.
Checked by: tests/sampling/test_participation_schemes.py, tests/attacks/test_draws_by_number.py
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietgrad._errors import PrivacyError
from quietgrad._noise.aes import RandomWords
from quietgrad._sampling.coins import heads
from quietgrad.accounting.allocation import AllocationEvent
from quietgrad.accounting.base import Event
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.planning import Charge
from quietgrad.accounting.truncation import TruncatedEvent

Numbers = NDArray[np.int64]


class Scheme(ABC):
    """Draws the records, or users, of each step."""

    def begin(self, step: int) -> None:
        """Forget earlier draws: the run goes on at this step, perhaps after a crash."""

    @abstractmethod
    def draw(self, step: int, words: RandomWords) -> Numbers:
        """Return the numbers of a step, ascending."""

    @abstractmethod
    def charge(self, event: Event, step: int) -> Charge:
        """Say what a step costs that releases this."""

    def describe(self) -> dict[str, Any]:
        """Return what a ledger keeps of it; nothing for Poisson draws."""
        return {}


@dataclass(frozen=True)
class Poisson(Scheme):
    """Each step draws each record with probability q.

    Args:
        units: N.
        rate: q.
    """

    units: int
    rate: float

    def draw(self, step: int, words: RandomWords) -> Numbers:
        return heads(self.units, self.rate, words)

    def charge(self, event: Event, step: int) -> Charge:
        return Charge(event=event, rate=self.rate)


@dataclass(frozen=True)
class CyclicPoisson(Scheme):
    """Step t draws from group t mod b with probability b·q, so that a record takes part at most once in b steps.

    Args:
        units: N.
        rate: q.
        groups: b.
    """

    units: int
    rate: float
    groups: int

    def __post_init__(self) -> None:
        groups, rate = self.groups, self.rate
        if int(groups) != groups or not 1 <= groups <= self.units:
            raise ValueError(f"Expected groups to be a whole number from 1 to {self.units}, got {groups}.")
        if groups * rate > 1 + 1e-9:
            raise ValueError(
                f"Expected groups·rate <= 1, got {groups}·{rate:g}: one group does not hold an expected batch. Lower "
                f"the rate, or use at most {int(1 / rate)} groups."
            )

    def draw(self, step: int, words: RandomWords) -> Numbers:
        members = group_members(self.units, self.groups, step % self.groups)
        return members[heads(len(members), self._group_rate, words)]

    @property
    def _group_rate(self) -> float:
        return min(self.groups * self.rate, 1.0)

    def charge(self, event: Event, step: int) -> Charge:
        return Charge(
            event=event,
            rate=self._group_rate,
            group=step % self.groups,
            partition=f"{self.units} in {self.groups}",
            separation=self.groups,
        )

    def describe(self) -> dict[str, Any]:
        return {"groups": self.groups}


@dataclass(frozen=True)
class TruncatedPoisson(Scheme):
    """Each step draws each record with probability q, and leaves out some at random if there are more than B.

    Args:
        units: N.
        rate: q.
        at_most: B.
    """

    units: int
    rate: float
    at_most: int

    def __post_init__(self) -> None:
        if int(self.at_most) != self.at_most or self.at_most < max(1.0, self.rate * self.units):
            raise ValueError(
                f"Expected at_most to be a whole number from the expected batch {self.rate * self.units:g} up, got "
                f"{self.at_most}. A few times its square root above it leaves records out rarely, and costs little."
            )

    def draw(self, step: int, words: RandomWords) -> Numbers:
        drawn = heads(self.units, self.rate, words)
        if len(drawn) <= self.at_most:
            return drawn
        # The smallest of independent random words are a random subset; two of 64 bits are hardly ever equal.
        kept = np.argsort(words.take(len(drawn)), kind="stable")[: self.at_most]
        return drawn[np.sort(kept)]

    def charge(self, event: Event, step: int) -> Charge:
        truncated = TruncatedEvent(event=event, units=self.units, at_most=self.at_most)
        return Charge(event=truncated, rate=self.rate)

    def describe(self) -> dict[str, Any]:
        return {"at_most": self.at_most}


class Allocation(Scheme):
    """Each record takes part once in t = 1/q steps, at a step that is drawn at random for each of them.

    A block of t steps has one allocation, which is secret and stays in memory. After a resume a block begins, and is
    charged as a whole: a record may have taken part before the interruption and may do so again.

    Args:
        units: N.
        rate: q = 1/t.
    """

    def __init__(self, units: int, rate: float) -> None:
        self.units, self.steps = units, round(1 / rate)
        if abs(self.steps * rate - 1) > 1e-9:
            raise ValueError(
                f"Expected rate = 1/t with once_an_epoch, t a whole number of steps, got {rate:g}. Use 1/{self.steps}."
            )
        self._first = 0
        self._block: tuple[int, Numbers] | None = None

    def begin(self, step: int) -> None:
        self._first, self._block = step, None

    def draw(self, step: int, words: RandomWords) -> Numbers:
        block, place = divmod(step - self._first, self.steps)
        if self._block is None or self._block[0] != block:
            # Right to t·2⁻⁶⁴ of each probability.
            places = (words.take(self.units) % np.uint64(self.steps)).astype(np.int64)
            self._block = (block, places)
        return np.flatnonzero(self._block[1] == place)

    def charge(self, event: Event, step: int) -> Charge:
        if type(event) is not GaussianEvent:
            raise PrivacyError(
                f"Records that take part once in an epoch are priced for Gaussian noise alone, got {event}. Leave "
                "once_an_epoch out, or use a method with Gaussian noise."
            )
        whole = AllocationEvent(noise_multiplier=event.noise_multiplier, steps=self.steps)
        # All steps of a block are one event. The bill counts the place in the block that was charged most often, and
        # every block, also one that is broken off, has a step in place 0.
        return Charge(event=whole, rate=1.0, group=(step - self._first) % self.steps)

    def describe(self) -> dict[str, Any]:
        return {"once_in_steps": self.steps}

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins a block of its own: two runs may not share an allocation."""
        return self.__dict__ | {"_block": None}


def scheme_of(units: int, rate: float, *, groups: int, at_most: int | None, once_an_epoch: bool) -> Scheme:
    """Make the scheme that these options name.

    Raises:
        ValueError: an option does not fit, or two do not go together.
    """
    cyclic = CyclicPoisson(units, rate, groups)
    chosen = [
        name
        for name, wanted in (
            ("groups", groups > 1),
            ("at_most", at_most is not None),
            ("once_an_epoch", once_an_epoch),
        )
        if wanted
    ]
    if len(chosen) > 1:
        raise ValueError(
            f"{' and '.join(chosen)} are different ways to take part, and no price is known for them together. Pass "
            "one of them."
        )
    if once_an_epoch:
        return Allocation(units, rate)
    if at_most is not None:
        return TruncatedPoisson(units, rate, at_most)
    return cyclic if groups > 1 else Poisson(units, rate)


@functools.lru_cache(maxsize=64)
def group_members(units: int, groups: int, group: int) -> Numbers:
    """Return the numbers of a group's records, ascending; group sizes differ by at most one.

    The groups are a fixed permutation of the numbers, whatever the records hold. The same number is in the same group
    in every run, as resumed runs need, and a sorted file is spread over all groups.
    """
    # SplitMix64's mixing function, written out: numpy may change what its generators return, and a record that moved
    # to another group when a run is resumed would take part more often than the ledger counts.
    mixed = (np.arange(units, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    order = np.argsort(mixed ^ (mixed >> np.uint64(31)), kind="stable")
    return np.sort(order[group::groups])

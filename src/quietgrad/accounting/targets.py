"""What a calibration aims at: ε at δ, or what the best membership attack may reach."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from quietgrad.accounting.deltas import check_delta
from quietgrad.accounting.evaluate import Accountant, attack_advantage, members_found
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import Phase

SMALL_DELTA = 1e-6
"""The δ beside which a method divides a budget that was stated as a risk."""


class Target(ABC):
    """A bound on what a run may cost."""

    name: str

    @property
    @abstractmethod
    def most(self) -> float:
        """The bound."""

    @property
    @abstractmethod
    def budget(self) -> tuple[float, float]:
        """An (ε, δ) of about this size, for what a method divides before its noise is set."""

    @abstractmethod
    def cost(self, phases: tuple[Phase, ...], tolerance: float) -> float:
        """Return what a run costs, never less than the truth."""


@dataclass(frozen=True, kw_only=True)
class EpsilonTarget(Target):
    """At most ε at δ."""

    epsilon: float
    delta: float
    accountant: Accountant = "best"
    name = "epsilon"

    def __post_init__(self) -> None:
        check_delta(self.delta)
        if not 0 < self.epsilon < math.inf:
            raise ValueError(
                f"Expected epsilon > 0 and finite, got {self.epsilon}. Pass the budget the run may spend."
            )

    @property
    def most(self) -> float:
        return self.epsilon

    @property
    def budget(self) -> tuple[float, float]:
        return self.epsilon, self.delta

    def cost(self, phases: tuple[Phase, ...], tolerance: float) -> float:
        return epsilon_of(phases, self.delta, tolerance=tolerance, accountant=self.accountant)


@dataclass(frozen=True, kw_only=True)
class AdvantageTarget(Target):
    """At most so much that members are found more often than others are accused: TPR − FPR."""

    advantage: float
    name = "advantage"

    def __post_init__(self) -> None:
        if not 0 < self.advantage < 1:
            raise ValueError(
                f"Expected advantage in (0, 1), got {self.advantage}. It is the share of members found less the share "
                "of others accused, e.g. 0.1."
            )

    @property
    def most(self) -> float:
        return self.advantage

    @property
    def budget(self) -> tuple[float, float]:
        return math.log((1 + self.advantage) / (1 - self.advantage)), SMALL_DELTA

    def cost(self, phases: tuple[Phase, ...], tolerance: float) -> float:
        return attack_advantage(phases, tolerance=tolerance)


@dataclass(frozen=True, kw_only=True)
class FoundTarget(Target):
    """At most so many members found (TPR) by attacks that accuse at most so many others (FPR)."""

    found: float
    false_positives: float
    name = "found"

    def __post_init__(self) -> None:
        if not 0 < self.false_positives < self.found < 1:
            raise ValueError(
                f"Expected 0 < false_positives < found < 1, got {self.false_positives} and {self.found}. Guessing "
                "alone finds as many members as it accuses others."
            )

    @property
    def most(self) -> float:
        return self.found

    @property
    def budget(self) -> tuple[float, float]:
        return math.log(self.found / self.false_positives), SMALL_DELTA

    def cost(self, phases: tuple[Phase, ...], tolerance: float) -> float:
        return members_found(phases, self.false_positives, tolerance=tolerance)


def target_of(
    *,
    epsilon: float | None,
    delta: float | None,
    advantage: float | None,
    false_positives: float | None,
    found: float | None,
    accountant: Accountant = "best",
) -> Target:
    """Return the one target that was stated.

    Raises:
        ValueError: there is none, or more than one, or half of one.
    """
    stated = {
        "epsilon and delta": (epsilon, delta),
        "advantage": (advantage,),
        "false_positives and found": (false_positives, found),
    }
    begun = [name for name, values in stated.items() if any(value is not None for value in values)]
    if len(begun) != 1 or any(value is None for value in stated[begun[0]]):
        raise ValueError(
            f"Expected exactly one target: {', '.join(stated)}; got {', '.join(begun) or 'none'}"
            f"{' in part' if len(begun) == 1 else ''}. Give one of them whole."
        )
    if epsilon is not None and delta is not None:
        return EpsilonTarget(epsilon=epsilon, delta=delta, accountant=accountant)
    if advantage is not None:
        return AdvantageTarget(advantage=advantage)
    assert found is not None
    assert false_positives is not None
    return FoundTarget(found=found, false_positives=false_positives)

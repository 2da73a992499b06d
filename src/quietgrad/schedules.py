"""Values that change over training by a plan fixed before it.

Clip bounds and noise factors are asked step by step; freeze rates and pruning ratios epoch by epoch. `PerEpoch` turns
a schedule over epochs into one over steps, which also keeps the ledger's phases few.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

__all__ = [
    "Complement",
    "Cooling",
    "Exponential",
    "Linear",
    "PerEpoch",
    "Piecewise",
    "Schedule",
    "check_fits",
    "epoch_of",
    "steps_of",
    "value_at",
]


class Schedule(ABC):
    """A number per step, known before training; a frozen dataclass, so that a ledger can describe it.

    Example:
        clip: qg.schedules.Schedule = qg.schedules.Linear(2.0, 0.5, 100)
        mechanism = qg.methods.dp_sgd(clip=clip)
    """

    @abstractmethod
    def at(self, step: int) -> float:
        """The value at a step (or an epoch, where the user of the schedule says so), counted from 0."""

    @property
    @abstractmethod
    def constant_from(self) -> int:
        """The first step from which on the value stays what it is."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "settled" in vars(cls) and "constant_from" not in vars(cls):  # a schedule written for 0.2
            _warn_of_old_name()
            setattr(cls, "constant_from", vars(cls)["settled"])  # noqa: B010 (mypy: a property is read-only)

    @property
    def settled(self) -> int:
        """Return `constant_from`; the name of 0.2 leaves in 0.4."""
        _warn_of_old_name()
        return self.constant_from

    @property
    def ramp(self) -> bool:
        """Whether the value glides to its last one: a ramp longer than training never gets there."""
        return True


def _warn_of_old_name() -> None:
    warnings.warn("Schedule.settled leaves in 0.4. Use constant_from.", DeprecationWarning, stacklevel=3)


def value_at(value: float | Schedule, step: int) -> float:
    """A plain number, or a schedule's value at this step."""
    return value.at(step) if isinstance(value, Schedule) else float(value)


@dataclass(frozen=True)
class Linear(Schedule):
    """start + (end − start)·min(t/length, 1).

    Example:
        clip = qg.schedules.Linear(2.0, 0.5, 100)
        assert clip.at(50) == 1.25
    """

    start: float
    end: float
    length: int

    def __post_init__(self) -> None:
        _check_length("length", self.length)

    def at(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(step / self.length, 1.0)

    @property
    def constant_from(self) -> int:
        return self.length


@dataclass(frozen=True)
class Exponential(Schedule):
    """start·(end/start)^min(t/length, 1).

    Raises:
        ValueError: an end is not above 0, or the length is below 1.

    Example:
        clip = qg.schedules.Exponential(4.0, 1.0, 100)
        assert clip.at(50) == 2.0
    """

    start: float
    end: float
    length: int

    def __post_init__(self) -> None:
        _check_length("length", self.length)
        if not (self.start > 0 and self.end > 0):
            raise ValueError(
                f"Expected start > 0 and end > 0, got {self.start} and {self.end}. Exponential decay never reaches 0; "
                "use Linear for that."
            )

    def at(self, step: int) -> float:
        return float(self.start * (self.end / self.start) ** min(step / self.length, 1.0))

    @property
    def constant_from(self) -> int:
        return self.length


@dataclass(frozen=True)
class Cooling(Schedule):
    """Random Freeze's gradual cooling: r(e) = r*·min(e/(e* − 1), 1).

    Args:
        rate: r*, the final freeze rate.
        epochs: e*, the epochs it takes; 1 starts at r*.

    Example:
        freeze = qg.schedules.Cooling(0.9, epochs=10)
        mechanism = qg.methods.random_freeze(freeze=freeze)
    """

    rate: float
    epochs: int

    def __post_init__(self) -> None:
        _check_length("epochs", self.epochs)

    def at(self, step: int) -> float:
        return self.rate if step >= self.constant_from else self.rate * step / (self.epochs - 1)

    @property
    def constant_from(self) -> int:
        return self.epochs - 1


@dataclass(frozen=True)
class Piecewise(Schedule):
    """values[j] from boundaries[j − 1] up to, not including, boundaries[j].

    Raises:
        ValueError: the boundaries do not rise, or there is not one value more than those.

    Example:
        clip = qg.schedules.Piecewise((1.0, 0.5), (100,))  # 0.5 from step 100 on
        assert clip.at(99) == 1.0
    """

    values: tuple[float, ...]
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        rising = all(a < b for a, b in zip((0, *self.boundaries), self.boundaries, strict=False))
        if len(self.values) != len(self.boundaries) + 1 or not rising:
            raise ValueError(
                f"Expected one value more than rising boundaries > 0, got values={self.values} and "
                f"boundaries={self.boundaries}."
            )

    def at(self, step: int) -> float:
        return float(self.values[bisect_right(self.boundaries, step)])

    @property
    def constant_from(self) -> int:
        return self.boundaries[-1] if self.boundaries else 0

    @property
    def ramp(self) -> bool:
        return False


@dataclass(frozen=True)
class Complement(Schedule):
    """1 − schedule: the freeze rate of a ratio that is kept.

    Example:
        freeze = qg.schedules.Complement(qg.schedules.Linear(1.0, 0.1, 10))
        mechanism = qg.methods.random_freeze(freeze=freeze)
    """

    schedule: Schedule

    def at(self, step: int) -> float:
        return 1.0 - self.schedule.at(step)

    @property
    def constant_from(self) -> int:
        return self.schedule.constant_from

    @property
    def ramp(self) -> bool:
        return self.schedule.ramp


@dataclass(frozen=True)
class PerEpoch(Schedule):
    """A schedule over epochs as one over steps: schedule(⌊t·q⌋).

    Args:
        schedule: counts epochs.
        rate: q of the batches.

    Raises:
        ValueError: the rate is not in (0, 1].

    Example:
        clip = qg.schedules.PerEpoch(qg.schedules.Linear(2.0, 0.5, 10), rate=batches.rate)
        mechanism = qg.methods.dp_sgd(clip=clip)
    """

    schedule: Schedule
    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"Expected rate in (0, 1], got {self.rate}. Pass the rate of the batches.")

    def at(self, step: int) -> float:
        return self.schedule.at(epoch_of(step, self.rate))

    @property
    def constant_from(self) -> int:
        return math.ceil(self.schedule.constant_from / self.rate - 1e-9)

    @property
    def ramp(self) -> bool:
        return self.schedule.ramp


def check_fits(name: str, value: float | Schedule, *, steps: int, rate: float) -> None:
    """Refuse a ramp over epochs that is longer than training.

    Raises:
        ValueError: it is longer.
    """
    last = epoch_of(steps - 1, rate)
    if isinstance(value, Schedule) and value.ramp and value.constant_from > last:
        raise ValueError(
            f"{name}={value} changes until epoch {value.constant_from}, but training ends with epoch {last} ({steps} "
            f"steps at rate {rate:g}). Shorten the schedule or plan more steps."
        )


def epoch_of(step: int, rate: float) -> int:
    """The completed passes over the data in expectation."""
    return int(step * rate + 1e-9)


def steps_of(epochs: float, rate: float) -> int:
    """The steps that make this many passes over the data in expectation, ⌈epochs/q⌉, at least one."""
    return max(1, math.ceil(epochs / rate - 1e-9))


def _check_length(name: str, value: int) -> None:
    if int(value) != value or value < 1:
        raise ValueError(f"Expected {name} to be a whole number >= 1, got {value}.")

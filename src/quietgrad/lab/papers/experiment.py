"""An experiment of a paper at three scales, and where it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from quietgrad.lab.errors import LabError
from quietgrad.lab.papers.finding import SCALES, Finding, Scale

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an experiment keeps its runs, finds its data and tells its progress.

    Args:
        keep: takes what is found so far, after each row of a long table.
    """

    out: Path
    data_dir: Path | None = None
    tell: Tell = field(default=lambda _: None)
    keep: Callable[[Finding], None] = field(default=lambda _: None)


class Experiment(ABC):
    """Runs at some of the scales; what was finished before is not run again."""

    @property
    @abstractmethod
    def scales(self) -> tuple[Scale, ...]:
        """Those it can run at."""

    @property
    def resumable(self) -> bool:
        """Whether a run that is interrupted goes on where it was."""
        return False

    def trainings(self, scale: Scale) -> frozenset[str]:
        """Return names of the trainings that a run makes; two entries may share some. Empty if it has none."""
        self.check(scale)
        return frozenset()

    @abstractmethod
    def seconds(self, scale: Scale, place: Place) -> float:
        """An estimate for this machine, before anything runs."""

    @abstractmethod
    def run(self, scale: Scale, place: Place) -> Finding:
        """Do it."""

    def check(self, scale: Scale) -> None:
        """Refuse a scale there is no plan for."""
        if scale not in self.scales:
            raise LabError(f"This runs at {', '.join(self.scales)}, not at {scale}.")


@dataclass(frozen=True, kw_only=True)
class Computed(Experiment):
    """One function of the scale: theory that a computer can check, or figures of short runs.

    Args:
        make: from scale and place to the finding.
        minutes: per scale, as measured on two cores of 2024; scales that are not here cannot be run.
    """

    make: Callable[[Scale, Place], Finding]
    minutes: Mapping[Scale, float]

    @property
    def scales(self) -> tuple[Scale, ...]:
        return tuple(scale for scale in SCALES if scale in self.minutes)

    def seconds(self, scale: Scale, place: Place) -> float:
        self.check(scale)
        return 60 * self.minutes[scale]

    def run(self, scale: Scale, place: Place) -> Finding:
        self.check(scale)
        return self.make(scale, place)

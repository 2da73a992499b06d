"""A program: statistics of all records, training, statistics of its outcome, calibrated together to one (ε, δ).

Shares are parts of the squared budget. A Gaussian of multiplier σ_j costs about 1/σ_j², T steps at rate q about q²T/σ²
(exactly so at q = 1, where Gaussians compose to a Gaussian). With f_0 the share of training,

    σ_j = σ · √(f_0/f_j) / (q√T),

so one number σ scales everything, and calibration finds the smallest one whose *whole* plan stays within (ε, δ) under
the exact accountant; shares only say how it is divided.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quietgrad._mechanism.description import describe
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._program.statistics import Statistic
from quietgrad.accounting.events import Event, GaussianEvent, Phase
from quietgrad.accounting.planning import AFTER, Steps


@dataclass(frozen=True, kw_only=True)
class StatisticRelease:
    """A statistic and its part of the squared budget.

    Example:
        release = qg.StatisticRelease(statistic=qg.Mean(), share=0.01)
        program = qg.Program(training=mechanism, statistics={"mean": release})
    """

    statistic: Statistic
    share: float


@dataclass(frozen=True, kw_only=True)
class Program:
    """Statistics of all records, training, and statistics of its outcome.

    Args:
        training: the mechanism of the steps; its share is what the statistics leave.
        statistics: name → what is released before training, in the order of release.
        after: name → what is released after training, such as how many records the model gets right.

    Raises:
        ValueError: the shares of the statistics leave nothing for training.

    Example:
        statistics = {"mean": qg.StatisticRelease(statistic=qg.Mean(), share=0.01)}
        program = qg.Program(training=qg.methods.dp_sgd(clip=0.5), statistics=statistics)
        program = qg.calibrate(program, batches, epsilon=1.0, delta=1e-5)
    """

    training: Mechanism
    statistics: Mapping[str, StatisticRelease] = field(default_factory=dict)
    after: Mapping[str, StatisticRelease] = field(default_factory=dict)

    def __post_init__(self) -> None:
        both = sorted(set(self.statistics) & set(self.after))
        if both:
            raise ValueError(
                f"Expected a name for each statistic, got {both[0]!r} before and after training."
            )
        shares = {name: release.share for name, release in self.releases.items()}
        if any(not 0 < share < 1 for share in shares.values()) or sum(shares.values()) >= 1:
            raise ValueError(
                f"Expected shares in (0, 1) whose sum leaves a part for training, got {shares}. Lower them."
            )

    @property
    def releases(self) -> dict[str, StatisticRelease]:
        """All statistics, before and after training."""
        return {**self.statistics, **self.after}

    @property
    def training_share(self) -> float:
        """f_0, what the statistics leave."""
        return 1.0 - sum(release.share for release in self.releases.values())

    def with_noise(self, noise_multiplier: float) -> Program:
        """Return the program with another σ of training; the statistics scale along."""
        return replace(self, training=self.training.with_noise(noise_multiplier))

    def for_budget(self, batches: Steps, *, epsilon: float, delta: float) -> Program:
        """Return the program with everything fixed that depends on the budget, except σ."""
        return replace(self, training=self.training.for_budget(batches, epsilon=epsilon, delta=delta))

    def event(self, step: int) -> Event:
        """Return what a training step costs."""
        return self.training.event(step)

    def multiplier(self, name: str, batches: Steps) -> float:
        """Return σ_j of a statistic."""
        ratio = self.training_share / self.releases[name].share
        return self.training.multiplier(0) * math.sqrt(ratio / batches.steps) / batches.rate

    def statistic_event(self, name: str, batches: Steps) -> GaussianEvent:
        """Return what releasing a statistic costs; all records take part."""
        return GaussianEvent(noise_multiplier=self.multiplier(name, batches))

    def before(self, batches: Steps) -> tuple[Phase, ...]:
        """Return the phases before training: every statistic once, from all records."""
        return self._phases(self.statistics, batches)

    def afterwards(self, batches: Steps) -> tuple[Phase, ...]:
        """Return the phases after training: every statistic of its outcome once, from all records."""
        return self._phases(self.after, batches)

    def _phases(self, names: Iterable[str], batches: Steps) -> tuple[Phase, ...]:
        events = [self.statistic_event(name, batches) for name in names]
        return tuple(Phase(event=event, rate=1.0, count=1) for event in events)

    def describe(self) -> dict[str, Any]:
        """Return plain data, equal exactly for equal programs."""
        statistics = {name: describe(release) for name, release in self.statistics.items()}
        after = {name: describe(release) for name, release in self.after.items()}
        beside = (
            {AFTER: after} if after else {}
        )  # absent where there is none, as in ledgers of earlier versions
        return {"statistics": statistics, "mechanism": self.training.describe(), **beside}

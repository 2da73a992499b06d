"""The scores of many steps, and what they show about μ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from quietgrad.audit.bounds import mu_from_counts, slope_over_noise
from quietgrad.audit.canary_design import Group
from quietgrad.audit.step_canaries import StepScores

FEWEST = 16
"""Scores below which nothing is concluded."""

Each = Float64[ndarray, " n"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a set of scores shows.

    Args:
        times: lower bound on μ over the claimed μ; above 1 is a violation.
        scores: how many.
    """

    times: float
    scores: int


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of many steps, in units of the claimed noise.

    Args:
        strengths: what an included canary adds to its score.
        hits: the part of the claimed μ = 1/σ of its step that each canary reaches, noise taken as claimed.
        claimed: that μ.
        groups: of each canary, the block it concentrates on in each release.
    """

    included: Bool[ndarray, " n"]
    scores: Each
    strengths: Each
    hits: Each
    claimed: Each
    groups: tuple[tuple[Group, ...], ...]

    @classmethod
    def of(cls, steps: Sequence[StepScores], multipliers: Sequence[float]) -> Scores:
        """All scores of steps with these σ."""
        sigmas = np.concatenate([np.full(len(s.scores), m) for s, m in zip(steps, multipliers, strict=True)])
        return cls(
            included=np.concatenate([step.included for step in steps]),
            scores=np.concatenate([step.scores for step in steps]),
            strengths=np.concatenate([step.strengths for step in steps]),
            hits=np.concatenate([step.norms for step in steps]) * sigmas,
            claimed=1 / sigmas,
            groups=tuple(labels for step in steps for labels in step.groups),
        )

    @property
    def hit(self) -> float:
        """The part of the claimed μ that the canaries reach on average, noise taken as claimed."""
        return float(self.hits.mean())

    def of_group(self, group: Group) -> Scores:
        """The scores of the canaries on one block."""
        chosen = np.array([group in labels for labels in self.groups])
        return Scores(
            included=self.included[chosen],
            scores=self.scores[chosen],
            strengths=self.strengths[chosen],
            hits=self.hits[chosen],
            claimed=self.claimed[chosen],
            groups=tuple(labels for labels in self.groups if group in labels),
        )

    def measure(self, alpha: float) -> Measured:
        """From all scores at once: score = a·strength·included + Gaussian noise, so μ = (a over noise)·hit."""
        if len(self.scores) < FEWEST:
            return Measured(times=0.0, scores=len(self.scores))
        louder = slope_over_noise(self.included * self.strengths, self.scores, alpha=alpha)
        return Measured(times=louder * self.hit, scores=len(self.scores))

    def measure_by_threshold(self, alpha: float) -> Measured:
        """From guesses: half of the scores choose a threshold, the others are counted; assumes no Gaussian noise."""
        relative = self.scores / self.strengths.clip(1e-12)
        choose = np.arange(len(relative)) % 2 == 0
        threshold = _midpoint(relative[choose], self.included[choose])
        inside, caught = self.included[~choose], relative[~choose] >= threshold
        members, others = int(inside.sum()), int((~inside).sum())
        if min(members, others) < FEWEST:
            return Measured(times=0.0, scores=len(inside))
        right, alarms = int((caught & inside).sum()), int((caught & ~inside).sum())
        mu = mu_from_counts(right, members, alarms, others, alpha=alpha)
        return Measured(times=mu / float(self.claimed.max()), scores=len(inside))


def _midpoint(scores: Each, included: Bool[ndarray, " n"]) -> float:
    if included.all() or not included.any():
        return 0.5
    return float((scores[included].mean() + scores[~included].mean()) / 2)

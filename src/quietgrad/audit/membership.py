"""Membership inference from losses, beside the best that any attack could do against the claimed privacy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from quietgrad.accounting.evaluate import attack_advantage
from quietgrad.accounting.events import Phase
from quietgrad.audit.bounds import proportion_at_least, proportion_at_most


@dataclass(frozen=True, kw_only=True)
class MembershipReport:
    """How often an attacker tells members of the training set from others; 0.5 is guessing.

    Args:
        success: on the half that did not choose the threshold, balanced.
        interval: of the success rate, at `confidence`.
        evaluated: points in that half.
        bound: what no attack can exceed against the claimed privacy; 1 for a run without noise.

    Example:
        report = qg.audit.threshold_attack(-losses_of_members, -losses_of_others, phases=private.plan)
        low, high = report.interval
    """

    attack: str
    success: float
    interval: tuple[float, float]
    confidence: float
    evaluated: int
    bound: float | None

    @property
    def verdict(self) -> str:
        """Whether the attack went beyond what the claimed privacy allows."""
        if self.bound is None or self.bound >= 1:
            return "not private"
        return "violated" if self.interval[0] > self.bound else "consistent"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "interval": list(self.interval), "verdict": self.verdict}

    def __str__(self) -> str:
        low, high = self.interval
        against = (
            "no bound: the run is not private"
            if self.bound is None
            else f"no attack exceeds {self.bound:.1%}"
        )
        return (
            f"{self.attack}: {self.success:.1%} right [{low:.1%}, {high:.1%}] at {self.confidence:.1%} confidence on "
            f"{self.evaluated} points; {against} ({self.verdict})"
        )


def success_bound(phases: Iterable[Phase]) -> float:
    """(1 + δ(0))/2: the highest success rate of any attack on one record with even odds.

    The textbook (e^ε + δ)/(1 + e^ε) is vacuous for the ε of deep learning; the whole curve is not.
    """
    return (1 + attack_advantage(phases)) / 2


def threshold_attack(
    members: Float64[ndarray, " n"],
    others: Float64[ndarray, " m"],
    *,
    phases: Iterable[Phase] | None,
    name: str = "loss threshold",
    confidence: float = 0.999,
    seed: int = 0,
) -> MembershipReport:
    """Call a record a member if its score is high (a score: the negative loss, or that of a shadow-model attack).

    As in RGP's section 5.3: a balanced set, one half finds the threshold, the other half measures the success rate.

    Args:
        members, others: a score for each record of the training set, and of one that was not trained on.
        phases: the plan of the run; None for a non-private one.
        seed: of the balanced choice and of the halves.

    Returns:
        its success rate beside the bound for any attack.

    Raises:
        ValueError: there are fewer than 4 members or others.
    """
    size = min(len(members), len(others))
    if size < 4:
        raise ValueError(f"Expected at least 4 members and 4 others, got {len(members)} and {len(others)}.")
    rng = np.random.default_rng(seed)
    inside, outside = (rng.permutation(scores)[:size] for scores in (members, others))
    half = size // 2
    threshold = _best_threshold(inside[:half], outside[:half])
    right = int((inside[half:] >= threshold).sum() + (outside[half:] < threshold).sum())
    total, alpha = 2 * (size - half), 1 - confidence
    return MembershipReport(
        attack=name,
        success=right / total,
        interval=(proportion_at_least(right, total, alpha / 2), proportion_at_most(right, total, alpha / 2)),
        confidence=confidence,
        evaluated=total,
        bound=None if phases is None else success_bound(phases),
    )


def _best_threshold(inside: Float64[ndarray, " n"], outside: Float64[ndarray, " m"]) -> float:
    """The threshold with the most right calls on these scores."""
    values = np.concatenate([inside, outside])
    member: Bool[ndarray, " n"] = np.arange(len(values)) < len(inside)
    order = np.argsort(-values, kind="stable")
    gained = np.concatenate([[0], np.cumsum(np.where(member[order], 1, -1))])
    best = int(gained.argmax())
    ordered: Float64[ndarray, " n"] = values[order]
    return float(np.inf if best == 0 else ordered[best - 1])

"""What a run costs: ε for a δ, δ for an ε, and what an attacker can gain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quietgrad.accounting.deltas import check_delta
from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.pld import TOLERANCE, pld_delta, pld_epsilon, pld_found
from quietgrad.accounting.rdp import rdp_epsilon

Accountant = Literal["best", "pld", "rdp"]
"""Who proves ε: the smaller of both upper bounds, or one of them."""


def epsilon(
    phases: Iterable[Phase], delta: float, *, accountant: Accountant = "best", tolerance: float = TOLERANCE
) -> float:
    """The smallest ε the accountant can prove at δ; inf if a release had no noise.

    Args:
        phases: what was or will be released.
        delta: in (0, 0.1), well below 1 / records.
        accountant: "best" is the smaller of the PLD on a grid fine enough and RDP; both are upper bounds.
        tolerance: how far, relative to itself, a finer grid may still lower ε.

    Raises:
        ValueError: δ is not in (0, 1).
    """
    check_delta(delta)
    runs = coalesce(phases)
    if accountant == "rdp":
        return rdp_epsilon(runs, delta)
    tight = pld_epsilon(runs, delta, tolerance=tolerance)
    if tight.converged or accountant == "pld":
        return tight.epsilon  # RDP is a bound on the same loss: it cannot be below an exact PLD
    return min(tight.epsilon, rdp_epsilon(runs, delta))


def delta(phases: Iterable[Phase], epsilon: float) -> float:
    """The smallest δ that the PLD proves at ε.

    Raises:
        ValueError: ε is negative.
    """
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon >= 0, got {epsilon}.")
    return pld_delta(phases, epsilon)


def attack_advantage(phases: Iterable[Phase], *, tolerance: float = TOLERANCE) -> float:
    """The most that any membership attack can gain: max over attacks of TPR − FPR = δ(ε = 0)."""
    return pld_delta(phases, 0.0, tolerance=tolerance)


def members_found(phases: Iterable[Phase], false_positives: float, *, tolerance: float = TOLERANCE) -> float:
    """The largest share of members that an attack finds which accuses at most `false_positives` of the others.

    It is read off the PLD's trade-off curve, and never below the truth.
    Checked by: tests/accounting/test_attack_risk.py

    Raises:
        ValueError: the false-positive rate is not in (0, 1).
    """
    if not 0 < false_positives < 1:
        raise ValueError(f"Expected false_positives in (0, 1), got {false_positives}.")
    return pld_found(phases, false_positives, tolerance=tolerance)

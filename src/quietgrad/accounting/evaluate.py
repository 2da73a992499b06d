"""What a run costs: epsilon for a delta, delta for an epsilon, and what an attacker can gain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.pld import pld_delta, pld_epsilon
from quietgrad.accounting.rdp import rdp_epsilon

Accountant = Literal["best", "pld", "rdp"]


def epsilon(phases: Iterable[Phase], delta: float, *, accountant: Accountant = "best") -> float:
    """The smallest epsilon the accountant can prove at delta; inf if a release had no noise.

    Args:
        phases: what was or will be released.
        delta: in (0, 1), well below 1 / records.
        accountant: "best" is the smaller of the PLD on a grid fine enough and RDP; both are upper bounds.
    """
    check_delta(delta)
    runs = coalesce(phases)
    if accountant == "rdp":
        return rdp_epsilon(runs, delta)
    tight = pld_epsilon(runs, delta)
    if tight.converged or accountant == "pld":
        return tight.epsilon  # RDP is a bound on the same loss: it cannot be below an exact PLD
    return min(tight.epsilon, rdp_epsilon(runs, delta))


def delta(phases: Iterable[Phase], epsilon: float) -> float:
    """The smallest delta that the PLD proves at epsilon."""
    if not epsilon >= 0:
        raise ValueError(f"Expected epsilon >= 0, got {epsilon}.")
    return pld_delta(phases, epsilon)


def attack_advantage(phases: Iterable[Phase]) -> float:
    """The most that any membership attack can gain: max over attacks of TPR - FPR = delta(epsilon = 0)."""
    return pld_delta(phases, 0.0)


def check_delta(delta: float) -> None:
    """Refuse a delta that means nothing."""
    if not 0 < delta < 1:
        raise ValueError(
            f"Expected delta in (0, 1), got {delta}. Choose it well below 1 / records, e.g. 1e-5."
        )

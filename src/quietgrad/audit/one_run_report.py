"""From scores and coins of one run to a report, by all one-run bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray

from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.events import Phase
from quietgrad.accounting.pld import is_private, pld
from quietgrad.audit.composition import louder, shown_epsilon
from quietgrad.audit.one_run import Values, guess, one_run_epsilon, refuted
from quietgrad.audit.order_statistics import TradeOff, refuted_by_order
from quietgrad.audit.report import AuditReport

INDEPENDENT = (
    "scores of canaries that are independent of each other: each is read out of coordinates of its own"
)

SHARES = (1 / 16, 1 / 4, 1.0)
"""Parts of the canaries that are guessed; all are tried, and alpha is divided by their number."""


def one_run_report(
    attack: str,
    scores: Float64[ndarray, " m"],
    included: Bool[ndarray, " m"],
    phases: Sequence[Phase],
    *,
    delta: float,
    confidence: float,
    assumptions: tuple[str, ...],
    independent: bool = False,
) -> AuditReport:
    """The best of the (ε, δ) bound, the bound by the run's own trade-off curve, and that by order statistics.

    Args:
        scores: high for canaries that seem to have been trained on.
        phases: the plan.
        independent: whether scores are independent of each other, and canaries alike: for order statistics.
    """
    # Half of alpha is for guesses where order statistics, which show more, are there too.
    by_guesses = (1 - confidence) / (2 if independent else 1)
    alpha = by_guesses / 2 / len(SHARES)
    _check_canaries(len(scores), confidence, alpha)
    counts = [guess(scores, included, max(2, 2 * round(share * len(scores) / 2))) for share in SHARES]
    plain = max(one_run_epsilon(v, r, len(scores), delta=delta, alpha=alpha) for v, r in counts)
    private = is_private(phases)
    by_curve = by_order = 0.0
    if private:
        curve = max(
            _refuted_times(_by_count(v, r, len(scores), alpha), phases) if 2 * v > r else 0.0
            for v, r in counts
        )
        by_curve = shown_epsilon(phases, delta, curve)
    if private and independent:
        order = _refuted_times(
            lambda curve: refuted_by_order(scores, included, curve, alpha=(1 - confidence) / 2), phases
        )
        by_order = shown_epsilon(phases, delta, order)
        assumptions = (*assumptions, INDEPENDENT)
    return AuditReport(
        attack=attack,
        claimed=epsilon(phases, delta),
        delta=delta,
        lower_bound=max(plain, by_curve, by_order),
        confidence=confidence,
        assumptions=assumptions,
        details={
            "canaries": len(scores),
            "right_guesses": [v for v, _ in counts],
            "guesses": [r for _, r in counts],
            "epsilon_delta_bound": plain,
            "trade_off_bound": by_curve,
            "order_statistics_bound": by_order if independent else None,
        },
    )


def trade_off(phases: Sequence[Phase], steps: float = 1e-3) -> TradeOff:
    """f̄⁻¹(x) = max_ε (x − δ(ε))·e^{−ε} of a run, from its pessimistic privacy curve: never more private than it is."""
    curve = pld(phases, discretisation=steps)
    epsilons = np.concatenate([-np.linspace(0, 12, 121)[::-1], np.linspace(0, 30, 301)])
    deltas = np.array([curve.get_delta_for_epsilon(float(e)) for e in epsilons])

    def inverse(chances: Values) -> Values:
        best: Values = ((chances[:, None] - deltas) * np.exp(-epsilons)).max(1).clip(0.0)
        return best

    return inverse


def _refuted_times(refutes: Callable[[TradeOff], bool], phases: Sequence[Phase]) -> float:
    """Return the largest factor on the claimed μ of every step whose trade-off curve is refuted."""
    low, high = 0.0, 2.0
    while high - low > 0.02:
        middle = (low + high) / 2
        curve = trade_off([louder(phase, middle) for phase in phases])
        low, high = (middle, high) if refutes(curve) else (low, middle)
    return low


def _by_count(right: int, guesses: int, canaries: int, alpha: float) -> Callable[[TradeOff], bool]:
    return lambda curve: bool(refuted(np.array([right]), guesses, canaries, curve, alpha=alpha)[0])


def _check_canaries(canaries: int, confidence: float, alpha: float) -> None:
    needed = math.ceil(math.log2(1 / alpha)) + 1
    if canaries < needed:
        raise ValueError(
            f"Expected at least {needed} canaries for {confidence:.1%} confidence, got {canaries}: even guessing all "
            "of them right would show nothing. Insert more canaries, or lower the confidence."
        )

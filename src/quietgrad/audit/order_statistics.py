"""ε from the order of scores that are independent of each other: more than one-run bounds show of as few canaries.

The bounds of `one_run` hold however the scores hang together, and pay for it: an algorithm that now and then shows all
canaries at once must be ruled out. Where each canary is read out of coordinates of its own, scores are independent and
alike, and every canary is a game of its own.

Let others' scores have the law Q and members' the law P. The placement u = Q(score ≥ s) of others is uniform; that of a
member is below x with the chance that a test of x false positives finds him, at most that of the trade-off curve. So
under an f-private algorithm members' placements are no smaller, one by one, than f̄⁻¹(V), V uniform. The order of all
scores is that of the placements. Hence for every statistic that grows when members move up,

    P[T ≥ t] ≤ P[T(uniform placements of the others, f̄⁻¹(V) of the members) ≥ t]

Simulated placements give the p-value (1 + #{T_k ≥ t}) / (1 + n). T adds up normal scores of the members' ranks (van
der Waerden), which for Gaussian scores loses nothing to knowing their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float64
from numpy import ndarray
from scipy import special

Values = Float64[ndarray, " v"]
TradeOff = Callable[[Values], Values]
"""f̄⁻¹, the least chance of an event under one world that has chance x under its neighbour."""

POINTS = 4096
"""Of f̄⁻¹. Between them it is rounded down, against the audit."""

SIMULATIONS = 20
"""Times 1/α: so the p-value at α is known to about a fifth of itself."""

AT_ONCE = 1 << 20
"""Placements that are simulated at a time."""


def refuted_by_order(
    scores: Float64[ndarray, " m"],
    included: Bool[ndarray, " m"],
    trade_off: TradeOff,
    *,
    alpha: float,
) -> bool:
    """Return whether members' scores are higher than an f-private algorithm allows, but for a chance of alpha.

    Checked by: tests/audit/test_order_statistics.py

    Args:
        scores: of canaries, independent of each other and alike but for who is a member.
        trade_off: f̄⁻¹.
    """
    members, others = int(included.sum()), int((~included).sum())
    if min(members, others) == 0:
        return False
    # Of equal scores those of others come first: against the audit.
    order = np.lexsort((~included, scores))
    weights = special.ndtri(np.arange(1, len(scores) + 1) / (len(scores) + 1))
    seen = float(weights[included[order]].sum())
    curve = trade_off(np.arange(POINTS) / POINTS)
    draws, count = math.ceil(SIMULATIONS / alpha), 0
    rng = np.random.default_rng(
        0
    )  # the same at every bound: the largest that is refuted is then well-defined
    for first in range(0, draws, max(1, AT_ONCE // len(scores))):
        now = min(max(1, AT_ONCE // len(scores)), draws - first)
        placements = rng.random((now, members + others))
        placements[:, :members] = curve[(placements[:, :members] * POINTS).astype(np.int64)]
        # The largest placement is the lowest score.
        is_member = np.argsort(-placements, axis=1) < members
        count += int((is_member @ weights >= seen - 1e-9).sum())
    return (1 + count) / (1 + draws) <= alpha

"""From what one step showed to ε of the whole run, never above the truth."""

from __future__ import annotations

from collections.abc import Sequence

from quietgrad.accounting.base import gaussian_precision
from quietgrad.accounting.events import GaussianEvent, Phase, coalesce
from quietgrad.accounting.pld import pld, pld_epsilon

# Rounding every step's loss down costs about steps·grid/2 of ε: this share of it.
ROUNDING = 0.01
# A step that shows this many times the claimed μ is broken beyond doubt: the bound is not followed further up.
MOST = 3.0


def shown_epsilon(phases: Sequence[Phase], delta: float, times: float) -> float:
    """A lower bound on ε of the run if every step's Gaussian is `times` as telling as claimed.

    Args:
        phases: the plan.
        times: measured μ over claimed μ; above MOST it counts as MOST.
    """
    if times <= 0:
        return 0.0
    raised = tuple(louder(phase, min(times, MOST)) for phase in phases)
    steps = sum(phase.count for phase in raised)
    rough = pld_epsilon(raised, delta, tolerance=1.0).epsilon
    if steps == 0 or rough == 0:
        return 0.0
    optimistic = pld(coalesce(raised), pessimistic=False, discretisation=2 * ROUNDING * rough / steps)
    return float(optimistic.get_epsilon_for_delta(delta))


def louder(phase: Phase, times: float) -> Phase:
    """The phase at `times` its μ; selections are left out, as forgetting them is a post-processing."""
    if phase.event.is_exclusive:
        raise ValueError(
            f"No price from below is known for {phase.event}, so canaries show nothing of it. Audit the same mechanism "
            "with Poisson draws."
        )
    precision = gaussian_precision(phase.event)
    assert precision > 0, "every step of a mechanism has a Gaussian part"
    event = GaussianEvent(noise_multiplier=precision**-0.5 / times)
    return Phase(event=event, rate=phase.rate, count=phase.count)

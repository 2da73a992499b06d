"""The price of Poisson draws of which at most so many records are used.

A step draws each of N records with probability q. If more than B are drawn, B of them, chosen at random, are used. Let
x be a record, K the records that are used, and A = K without x. Neighbours are zero-out: the null record that stands in
for x keeps its place, so it is drawn and left out like any other. Hence K has the same distribution in both worlds, and
so has A. Whoever is told A can only tell the worlds apart better. Given A, the step is a Poisson-subsampled release of
rate P(x ∈ K | A), which depends on the size of A alone, by symmetry:

    |A| ≤ B − 2    nothing was left out: q
    |A| = B − 1    (q·a + c)/(a + c),  a = P(Bin(N−1, q) = B−1),  c = P(x ∈ K, others left out) = B/N·P(Bin(N, q) > B)
    |A| = B        x is not used: 0

The step is the mixture of these three, with equal weights in both worlds. The sensitivity stays C, unlike under
add-or-remove, where another record takes the free place and both sums differ by up to 2C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from scipy import special

from quietgrad.accounting.base import Event, event_from_dict, event_to_dict, register_event
from quietgrad.accounting.events import whole_number
from quietgrad.accounting.pairs import StepLoss, no_loss
from quietgrad.accounting.privacy_loss import LossPmf
from quietgrad.accounting.renyi_moments import Orders


@register_event("truncated")
@dataclass(frozen=True, kw_only=True)
class TruncatedEvent(Event):
    """What a step releases of a Poisson draw of which at most `at_most` records are used.

    Guarantee: the mixture above dominates every pair of zero-out neighbours.
    Checked by: tests/accounting/test_truncation.py

    Args:
        event: what is released of the records that are used.
        units: N, how many records may be drawn.
        at_most: B.

    Raises:
        ValueError: there are no records, or none may be used.

    Example:
        event = qg.accounting.TruncatedEvent(event=gaussian, units=10_000, at_most=150)
        epsilon = qg.accounting.epsilon([qg.accounting.Phase(event=event, rate=0.01, count=500)], 1e-5)
    """

    event: Event
    units: int
    at_most: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", whole_number("units", self.units, 1))
        object.__setattr__(self, "at_most", whole_number("at_most", self.at_most, 1))

    @property
    def spread(self) -> float:
        return self.event.spread

    @property
    def is_private(self) -> bool:
        return self.event.is_private

    @property
    def is_free(self) -> bool:
        return self.event.is_free

    @property
    def gaussian_precision(self) -> float:
        return self.event.gaussian_precision

    @property
    def separation(self) -> int:
        return self.event.separation

    @property
    def only_whole_orders(self) -> bool:
        return self.event.only_whole_orders

    def loss(self, step: float) -> LossPmf:
        return self.event.loss(step)

    def step_loss(self, rate: float, step: float, *, pessimistic: bool = True) -> StepLoss:
        if not pessimistic:
            return no_loss(step, pessimistic=False)  # the mixture is a bound from above only
        parts = [
            (weight, self.event.step_loss(one, step) if one else no_loss(step))
            for weight, one in rates(rate, self.units, self.at_most)
        ]
        return StepLoss(
            remove=mix([(weight, loss.remove) for weight, loss in parts]),
            add=mix([(weight, loss.add) for weight, loss in parts]),
        )

    def rdp(self, rate: float, orders: Orders) -> Orders:
        parts = rates(rate, self.units, self.at_most)
        values = [self.event.rdp(one, orders) if one else np.zeros_like(orders) for _, one in parts]
        moments = np.log([weight for weight, _ in parts])[:, None] + (orders - 1) * np.array(values)
        mixed: Orders = np.maximum(special.logsumexp(moments, axis=0), 0.0) / (orders - 1)
        return mixed

    def to_dict(self) -> dict[str, Any]:
        return {"event": event_to_dict(self.event), "units": self.units, "at_most": self.at_most}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TruncatedEvent:
        """Return the event that `to_dict` described."""
        return cls(**{**data, "event": event_from_dict(data["event"])})


@lru_cache(maxsize=1024)
def rates(rate: float, units: int, at_most: int) -> tuple[tuple[float, float], ...]:
    """Return the weights of the sizes of A, and the rate at which x takes part given each."""
    if at_most >= units:
        return ((1.0, rate),)
    others = scipy.stats.binom(units - 1, rate)
    few, just = float(others.cdf(at_most - 2)), float(others.pmf(at_most - 1))
    kept = at_most / units * float(scipy.stats.binom.sf(at_most, units, rate))
    parts = [(few, rate), (just + kept, min((rate * just + kept) / max(just + kept, 1e-300), 1.0))]
    parts.append((max(1.0 - few - just - kept, 0.0), 0.0))
    return tuple((weight, one) for weight, one in parts if weight > 0)


def mix(parts: Sequence[tuple[float, LossPmf]]) -> LossPmf:
    """Return the loss of one of these pairs, chosen with these probabilities and told."""
    step = parts[0][1].step
    lower = min(pmf.lower for _, pmf in parts)
    mass = np.zeros(max(pmf.lower + len(pmf.mass) for _, pmf in parts) - lower)
    for weight, pmf in parts:
        mass[pmf.lower - lower : pmf.lower - lower + len(pmf.mass)] += weight * pmf.mass
    infinity = sum(weight * pmf.infinity for weight, pmf in parts)
    return LossPmf(step=step, lower=lower, mass=mass, infinity=infinity)

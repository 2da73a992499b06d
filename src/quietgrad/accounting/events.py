"""The events that every mechanism can use, and phases: how often a run makes which event."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quietgrad.accounting.base import Event, event_from_dict, event_to_dict, register_event
from quietgrad.accounting.pairs import StepLoss, gaussian_loss
from quietgrad.accounting.privacy_loss import LossPmf, compose
from quietgrad.accounting.renyi_moments import Orders

__all__ = [
    "BandedEvent",
    "Event",
    "GaussianEvent",
    "JointEvent",
    "Phase",
    "coalesce",
    "effective_multiplier",
    "phase_from_dict",
    "phase_to_dict",
    "whole_number",
]


@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Event):
    """What events of Gaussian noise share: the multiplier, and the price of a record that surely takes part."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        # dp-accounting's RDP accountant silently drops int and numpy.float32 multipliers: only floats leave
        # this file.
        value = float(self.noise_multiplier)
        if not (0 <= value < math.inf):
            raise ValueError(
                f"Expected noise_multiplier >= 0 and finite, got {self.noise_multiplier}. "
                "Calibrate with qg.calibrate(...) or pass 0 for a non-private run."
            )
        object.__setattr__(self, "noise_multiplier", value)

    @property
    def is_private(self) -> bool:
        return self.noise_multiplier > 0

    @property
    def gaussian_precision(self) -> float:
        return self.noise_multiplier**-2 if self.noise_multiplier > 0 else math.inf

    def loss(self, step: float) -> LossPmf:
        return gaussian_loss(self.noise_multiplier, 1.0, step).remove


@register_event("gaussian")
@dataclass(frozen=True, kw_only=True)
class GaussianEvent(GaussianNoise):
    """A Gaussian release with its effective multiplier, σ_eff⁻² = Σ_j (S_j / s_j)².

    Args:
        noise_multiplier: noise std over L2 sensitivity of everything released from one batch; 0 means
            ε = inf.

    Raises:
        ValueError: the multiplier is negative or infinite.

    Example:
        event = qg.accounting.GaussianEvent(noise_multiplier=1.1)
        epsilon = qg.accounting.epsilon([qg.accounting.Phase(event=event, rate=0.01, count=1_000)], 1e-5)
    """

    @property
    def spread(self) -> float:
        return 1 / self.noise_multiplier

    @property
    def only_whole_orders(self) -> bool:
        return False

    def step_loss(self, rate: float, step: float, *, pessimistic: bool = True) -> StepLoss:
        # The masses of the cells are known exactly, with subsampling too: no grid before the last one is needed.
        return gaussian_loss(self.noise_multiplier, rate, step, pessimistic=pessimistic)

    def log_moments(self, largest: int) -> Orders:
        ks = np.arange(largest + 1)
        moments: Orders = ks * (ks - 1) / (2 * self.noise_multiplier**2)
        return moments

    def rdp(self, rate: float, orders: Orders) -> Orders:
        # Here, since training needs no dp-accounting and importing it takes as long as all of quietgrad.
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant

        accountant = RdpAccountant(orders)
        event = dp_event.GaussianDpEvent(self.noise_multiplier)
        # Where the series of an order does not converge the order is left out, and each says so in a line of the log.
        # The bound is one over orders, so it holds without them.
        log = logging.getLogger("absl")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            accountant.compose(dp_event.PoissonSampledDpEvent(rate, event))
        finally:
            log.setLevel(level)
        return np.asarray(accountant.rdp)


@register_event("banded")
@dataclass(frozen=True, kw_only=True)
class BandedEvent(GaussianEvent):
    """A Gaussian release in which the sums of several steps show.

    The cost is that of one Gaussian of the same multiplier, provided that a record takes part at most once in `bands`
    steps in a row. A `Charge` refuses a sampler that does not say so.

    Args:
        bands: b, how many steps one contribution reaches.

    Raises:
        ValueError: the multiplier is negative or infinite, or there are no bands.

    Example:
        event = qg.accounting.BandedEvent(noise_multiplier=1.1, bands=4)
        charge = qg.accounting.Charge(event=event, rate=0.04, group=0, separation=4)
    """

    bands: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bands", whole_number("bands", self.bands, 1))

    @property
    def separation(self) -> int:
        return self.bands


@register_event("joint")
@dataclass(frozen=True, kw_only=True)
class JointEvent(Event):
    """A Gaussian and other events released from ONE batch; subsampled as a product, never one by one.

    Args:
        gaussian: all Gaussian noise of the step.
        selections: what else the step releases of the batch, each with independent randomness.

    Example:
        event = qg.accounting.JointEvent(gaussian=gaussian, selections=(selection,))
        phase = qg.accounting.Phase(event=event, rate=0.01, count=1_000)
    """

    gaussian: GaussianEvent
    selections: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "selections", tuple(self.selections))

    @property
    def _priced(self) -> tuple[Event, ...]:
        return tuple(event for event in self.selections if not event.is_free)

    @property
    def _parts(self) -> tuple[Event, ...]:
        return (*self._priced, self.gaussian)

    @property
    def spread(self) -> float:
        return math.hypot(*(part.spread for part in self._parts))

    @property
    def is_private(self) -> bool:
        return all(part.is_private for part in self._parts)

    @property
    def gaussian_precision(self) -> float:
        return sum(part.gaussian_precision for part in self._parts)

    @property
    def separation(self) -> int:
        return max(part.separation for part in self._parts)

    @property
    def only_whole_orders(self) -> bool:
        return bool(self._priced)

    def loss(self, step: float) -> LossPmf:
        # Losses of independent releases add up.
        return compose([(part.loss(step), 1) for part in self._parts])

    def step_loss(self, rate: float, step: float, *, pessimistic: bool = True) -> StepLoss:
        if not self._priced or not pessimistic:
            return self.gaussian.step_loss(rate, step, pessimistic=pessimistic)
        return super().step_loss(rate, step)

    def log_moments(self, largest: int) -> Orders:
        return sum((part.log_moments(largest) for part in self._parts), np.zeros(largest + 1))

    def rdp(self, rate: float, orders: Orders) -> Orders:
        return super().rdp(rate, orders) if self._priced else self.gaussian.rdp(rate, orders)

    def to_dict(self) -> dict[str, Any]:
        selections = [event_to_dict(selection) for selection in self.selections]
        return {"gaussian": event_to_dict(self.gaussian), "selections": selections}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JointEvent:
        """Return the event that `to_dict` described.

        Raises:
            ValueError: its Gaussian part is another event.
        """
        gaussian = event_from_dict(data["gaussian"])
        if not isinstance(gaussian, GaussianEvent):
            raise ValueError(f"Expected a gaussian inside a joint event, got {gaussian}.")
        return cls(gaussian=gaussian, selections=tuple(map(event_from_dict, data["selections"])))


@dataclass(frozen=True, kw_only=True)
class Phase:
    """`count` steps, each of which made `event` from its own Poisson draw of rate `rate`.

    Raises:
        ValueError: the rate is not in (0, 1], or the count is no whole number.

    Example:
        phase = qg.accounting.Phase(event=gaussian, rate=0.01, count=1_000)
        epsilon = qg.accounting.epsilon([phase], delta=1e-5)
    """

    event: Event
    rate: float
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checked_rate(self.rate))
        object.__setattr__(self, "count", whole_number("count", self.count, 0))


def effective_multiplier(multipliers: Iterable[float]) -> float:
    """Return the one Gaussian that several releases of a batch amount to: (Σ_j m_j⁻²)^(−1/2).

    Returns:
        its multiplier, 0 if one of them is 0.

    Raises:
        ValueError: there is no multiplier.
    """
    values = [GaussianEvent(noise_multiplier=m).noise_multiplier for m in multipliers]
    if not values:
        raise ValueError(
            "Expected at least one multiplier, got none. A step that releases nothing has no event."
        )
    if 0 in values:
        return 0.0
    return 1 / math.hypot(*(1 / value for value in values))


def coalesce(phases: Iterable[Phase]) -> tuple[Phase, ...]:
    """Merge equal neighbours into one phase, and drop empty phases.

    Returns:
        the same run.
    """
    merged: list[Phase] = []
    for phase in phases:
        if merged and (merged[-1].event, merged[-1].rate) == (phase.event, phase.rate):
            merged[-1] = Phase(event=phase.event, rate=phase.rate, count=merged[-1].count + phase.count)
        elif phase.count:
            merged.append(phase)
    return tuple(merged)


def phase_to_dict(phase: Phase) -> dict[str, Any]:
    """Describe a phase as plain data.

    Returns:
        what `phase_from_dict` takes.
    """
    return {"event": event_to_dict(phase.event), "rate": phase.rate, "count": phase.count}


def phase_from_dict(data: Mapping[str, Any]) -> Phase:
    """Make the phase that `phase_to_dict` described.

    Returns:
        an equal phase.

    Raises:
        ValueError: it describes no phase.
    """
    try:
        return Phase(event=event_from_dict(data["event"]), rate=data["rate"], count=data["count"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected the description of a phase, got {data}.") from error


def checked_rate(rate: float) -> float:
    """Return a Poisson rate as a float.

    Raises:
        ValueError: it is not in (0, 1].
    """
    if not 0 < float(rate) <= 1:
        raise ValueError(f"Expected rate in (0, 1], got {rate}. It is expected batch size / records.")
    return float(rate)


def whole_number(name: str, value: float, least: int) -> int:
    """Return a number as an int.

    Raises:
        ValueError: it is not whole, or below `least`.
    """
    if int(value) != value or value < least:
        raise ValueError(f"Expected {name} to be a whole number >= {least}, got {value}.")
    return int(value)

"""What a training step released, and how often: the words that mechanism, ledger and accountant share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class GaussianEvent:
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


@dataclass(frozen=True, kw_only=True)
class MallowsSelection:
    """Noisy top-k of every group: Pr[S] ~ exp(-θ |S - S*|_1), drawn in each group on its own.

    Args:
        theta: dispersion of the Mallows model; 0 draws uniformly and costs nothing.
        group_size: coordinates of a group.
        kept: how many of them are selected.
        groups: number of groups of this shape.

    Raises:
        ValueError: the dispersion is negative or infinite, or more is kept than a group has.

    Example:
        selection = qg.accounting.MallowsSelection(theta=0.1, group_size=64, kept=16, groups=10)
        event = qg.accounting.JointEvent(gaussian=gaussian, selections=(selection,))
    """

    theta: float
    group_size: int
    kept: int
    groups: int

    def __post_init__(self) -> None:
        theta = float(self.theta)
        if not (0 <= theta < math.inf):
            raise ValueError(
                f"Expected theta >= 0 and finite, got {self.theta}. Pass 0 for a uniform choice."
            )
        object.__setattr__(self, "theta", theta)
        for name, least in (("group_size", 1), ("kept", 0), ("groups", 1)):
            object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        if self.kept > self.group_size:
            raise ValueError(f"Expected kept <= group_size={self.group_size}, got {self.kept}. Keep fewer.")


@dataclass(frozen=True, kw_only=True)
class JointEvent:
    """A Gaussian and selections released from ONE batch; subsampled as a product, never one by one.

    Example:
        event = qg.accounting.JointEvent(gaussian=gaussian, selections=(selection,))
        phase = qg.accounting.Phase(event=event, rate=0.01, count=1_000)
    """

    gaussian: GaussianEvent
    selections: tuple[MallowsSelection, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "selections", tuple(self.selections))


Event: TypeAlias = GaussianEvent | MallowsSelection | JointEvent


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
        rate = float(self.rate)
        if not 0 < rate <= 1:
            raise ValueError(
                f"Expected rate in (0, 1], got {self.rate}. It is expected batch size / records."
            )
        object.__setattr__(self, "rate", rate)
        object.__setattr__(self, "count", _whole("count", self.count, 0))


def effective_multiplier(multipliers: Iterable[float]) -> float:
    """The one Gaussian that several releases of the same batch amount to: (Σ_j m_j⁻²)^(−1/2).

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
    """The same run, with equal neighbours as one phase and without empty ones."""
    merged: list[Phase] = []
    for phase in phases:
        if merged and (merged[-1].event, merged[-1].rate) == (phase.event, phase.rate):
            merged[-1] = Phase(event=phase.event, rate=phase.rate, count=merged[-1].count + phase.count)
        elif phase.count:
            merged.append(phase)
    return tuple(merged)


def event_to_dict(event: Event) -> dict[str, Any]:
    """A JSON-able description; floats survive JSON exactly."""
    if isinstance(event, GaussianEvent):
        return {"kind": "gaussian", "noise_multiplier": event.noise_multiplier}
    if isinstance(event, MallowsSelection):
        fields = {name: getattr(event, name) for name in ("theta", "group_size", "kept", "groups")}
        return {"kind": "mallows", **fields}
    return {
        "kind": "joint",
        "gaussian": event_to_dict(event.gaussian),
        "selections": [event_to_dict(selection) for selection in event.selections],
    }


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """The event that `event_to_dict` described.

    Raises:
        ValueError: it describes no event that this version knows.
    """
    fields = {key: value for key, value in data.items() if key != "kind"}
    try:
        if data["kind"] == "gaussian":
            return GaussianEvent(**fields)
        if data["kind"] == "mallows":
            return MallowsSelection(**fields)
        if data["kind"] == "joint":
            return _joint_from_dict(fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected the description of an event, got {dict(data)}.") from error
    raise ValueError(f"Expected kind gaussian, mallows or joint, got {data['kind']!r}. Update quietgrad.")


def phase_to_dict(phase: Phase) -> dict[str, Any]:
    """A JSON-able description of a phase."""
    return {"event": event_to_dict(phase.event), "rate": phase.rate, "count": phase.count}


def phase_from_dict(data: Mapping[str, Any]) -> Phase:
    """The phase that `phase_to_dict` described.

    Raises:
        ValueError: it describes no phase.
    """
    try:
        return Phase(event=event_from_dict(data["event"]), rate=data["rate"], count=data["count"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected the description of a phase, got {data}.") from error


def _joint_from_dict(fields: Mapping[str, Any]) -> JointEvent:
    gaussian = event_from_dict(fields["gaussian"])
    selections = tuple(event_from_dict(item) for item in fields["selections"])
    if not isinstance(gaussian, GaussianEvent):
        raise ValueError(f"Expected a gaussian inside a joint event, got {gaussian}.")
    chosen = tuple(item for item in selections if isinstance(item, MallowsSelection))
    if len(chosen) != len(selections):
        raise ValueError(f"Expected only selections beside the gaussian of a joint event, got {selections}.")
    return JointEvent(gaussian=gaussian, selections=chosen)


def _whole(name: str, value: float, least: int) -> int:
    if int(value) != value or value < least:
        raise ValueError(f"Expected {name} to be a whole number >= {least}, got {value}.")
    return int(value)

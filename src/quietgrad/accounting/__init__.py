"""Privacy accounting: the price of a step and of a run, the noise for a budget, and the durable ledger."""

from typing import Any as _Any

from quietgrad.accounting.allocation import AllocationEvent
from quietgrad.accounting.base import (
    Event,
    event_class,
    event_from_dict,
    event_to_dict,
    gaussian_precision,
    register_event,
)
from quietgrad.accounting.calibrate import calibrate, rate_within, smallest_noise, steps_within
from quietgrad.accounting.evaluate import attack_advantage, delta, epsilon, members_found
from quietgrad.accounting.events import (
    BandedEvent,
    GaussianEvent,
    JointEvent,
    Phase,
    coalesce,
    effective_multiplier,
    phase_from_dict,
    phase_to_dict,
)
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.pairs import StepLoss
from quietgrad.accounting.planning import Charge, plan
from quietgrad.accounting.pld import pld
from quietgrad.accounting.privacy_loss import LossPmf, split_to_grid
from quietgrad.accounting.rdp import repeat_and_select
from quietgrad.accounting.truncation import TruncatedEvent

__all__ = [
    "AllocationEvent",
    "BandedEvent",
    "Charge",
    "Event",
    "GaussianEvent",
    "JointEvent",
    "Ledger",
    "LossPmf",
    "Phase",
    "StepLoss",
    "TruncatedEvent",
    "attack_advantage",
    "calibrate",
    "coalesce",
    "delta",
    "effective_multiplier",
    "epsilon",
    "event_from_dict",
    "event_to_dict",
    "gaussian_precision",
    "members_found",
    "phase_from_dict",
    "phase_to_dict",
    "plan",
    "pld",
    "rate_within",
    "register_event",
    "repeat_and_select",
    "smallest_noise",
    "split_to_grid",
    "steps_within",
]


def __getattr__(name: str) -> _Any:
    """Find the event that GIP registers; 0.2 defined it here."""
    if name == "MallowsSelection":
        return event_class("mallows")
    raise AttributeError(f"module 'quietgrad.accounting' has no attribute {name!r}")

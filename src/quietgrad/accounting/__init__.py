"""Privacy accounting: the price of a step and of a run, the noise for a budget, and the durable ledger."""

from quietgrad.accounting.calibrate import calibrate, plan, rate_within, smallest_noise, steps_within
from quietgrad.accounting.evaluate import attack_advantage, delta, epsilon
from quietgrad.accounting.events import (
    Event,
    GaussianEvent,
    JointEvent,
    MallowsSelection,
    Phase,
    coalesce,
    effective_multiplier,
    event_from_dict,
    event_to_dict,
    phase_from_dict,
    phase_to_dict,
)
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.pld import pld
from quietgrad.accounting.rdp import repeat_and_select

__all__ = [
    "Event",
    "GaussianEvent",
    "JointEvent",
    "Ledger",
    "MallowsSelection",
    "Phase",
    "attack_advantage",
    "calibrate",
    "coalesce",
    "delta",
    "effective_multiplier",
    "epsilon",
    "event_from_dict",
    "event_to_dict",
    "phase_from_dict",
    "phase_to_dict",
    "plan",
    "pld",
    "rate_within",
    "repeat_and_select",
    "smallest_noise",
    "steps_within",
]

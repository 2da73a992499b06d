"""What every event answers (its price, its Gaussian part, its JSON), and the registry of the kinds of events.

The accountant, calibration and the ledger know no event by name. They ask these questions, so that a mechanism or a
sampler with a price of its own needs no change here: it brings a class under `@register_event`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

import numpy as np

from quietgrad.accounting.pairs import StepLoss, gaussian_loss, no_loss, subsample
from quietgrad.accounting.privacy_loss import LossPmf
from quietgrad.accounting.renyi_moments import Orders, subsampled_moment

E = TypeVar("E", bound="Event")

POINTS = 200
"""Grid points to a standard deviation of the loss before subsampling; what is lost there cannot come back later."""


class Event(ABC):
    """Everything that one step releases from one batch, and what it costs.

    A class of your own is a frozen dataclass under `@register_event("kind")` with two answers, `spread` and `loss`.
    The others follow from them; replace those of which you know better. docs/accounting.md has an example.

    Guarantee: ε is an upper bound as long as `loss` dominates the losses of all neighbouring batches.
    Checked by: tests/accounting/test_own_event.py

    Example:
        event: qg.accounting.Event = qg.accounting.GaussianEvent(noise_multiplier=1.1)
        loss = event.loss(1e-3)
    """

    @property
    @abstractmethod
    def spread(self) -> float:
        """Estimate the standard deviation of the loss; it sets the width of grids, never the answer."""

    @abstractmethod
    def loss(self, step: float) -> LossPmf:
        """Return the loss log P/Q on a grid of width `step`, if the record is in the batch for certain.

        (P, Q) dominates every pair of neighbouring batches, and a symmetry exchanges P and Q. An event without that
        symmetry replaces `step_loss` and `rdp` too. `split_to_grid` rounds atoms to a grid in the safe direction.
        """

    @property
    def is_private(self) -> bool:
        """Whether there is any noise; without, ε is infinite."""
        return True

    @property
    def is_free(self) -> bool:
        """Whether the release says nothing about the batch."""
        return False

    @property
    def gaussian_precision(self) -> float:
        """σ⁻² of the Gaussian noise in it, 0 if there is none: what law 0 compares with the noise really added."""
        return 0.0

    @property
    def separation(self) -> int:
        """In how many steps in a row a record may take part only once, for the event to cover it."""
        return 1

    @property
    def is_exclusive(self) -> bool:
        """Whether it prices several steps together, so that no other such event may be in a run."""
        return False

    @property
    def only_whole_orders(self) -> bool:
        """Whether `rdp` answers for whole Rényi orders alone."""
        return True

    def step_loss(self, rate: float, step: float, *, pessimistic: bool = True) -> StepLoss:
        """Return the loss of a step in both directions, where records take part by Poisson draws of this rate.

        An optimistic estimate reads the Gaussian part alone: to forget the rest is post-processing, so what is left is
        a lower bound.
        """
        if pessimistic:
            fine = min(step, self.spread / POINTS) or step
            return subsample(self.loss(fine), rate, step)
        if not self.gaussian_precision:
            return no_loss(step, pessimistic=False)
        return gaussian_loss(self.gaussian_precision**-0.5, rate, step, pessimistic=False)

    def log_moments(self, largest: int) -> Orders:
        """Return log E_Q[exp(k L)] for k = 0, 1, … largest, of the loss before subsampling."""
        loss = self.loss(self.spread / POINTS or 1.0)
        moments = np.array([max(loss.log_mgf(k - 1), 0.0) for k in range(largest + 1)])
        if loss.infinity > 0:
            moments[2:] = np.inf
        return moments

    def rdp(self, rate: float, orders: Orders) -> Orders:
        """Return the Rényi divergence of a step at each order."""
        moments = self.log_moments(int(orders.max()))
        return np.array([subsampled_moment(int(order), rate, moments) / (order - 1) for order in orders])

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` needs, as plain data that survives JSON exactly."""
        fields = dataclasses.fields(cast(Any, self))
        return {field.name: getattr(self, field.name) for field in fields}

    @classmethod
    def from_dict(cls: type[E], data: Mapping[str, Any]) -> E:
        """Return the event that `to_dict` described."""
        return cls(**data)


_CLASSES: dict[str, type[Event]] = {}


def register_event(kind: str) -> Callable[[type[E]], type[E]]:
    """Register a class of events, so that ledgers can hold them.

    Args:
        kind: stands for the class in ledgers; it must mean the same for as long as a ledger is kept.

    Returns:
        the decorator, which leaves the class as it is.

    Raises:
        ValueError: the kind already stands for another class.
    """

    def register(cls: type[E]) -> type[E]:
        known = _CLASSES.setdefault(kind, cls)
        # A notebook runs its cells again: the same name in the same module replaces itself.
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"The event kind {kind!r} stands for {known.__module__}.{known.__qualname__} already. Choose another "
                "kind: a ledger must mean one thing."
            )
        _CLASSES[kind] = cls
        return cls

    return register


def event_class(kind: str) -> type[Event]:
    """Return the class that a kind stands for.

    Raises:
        ValueError: no class was registered for it.
    """
    if kind not in _CLASSES:
        # Methods register events of their own. By name: accounting imports nothing that is built upon it.
        import_module("quietgrad.methods")
    if kind not in _CLASSES:
        raise ValueError(
            f"Expected kind {', '.join(sorted(_CLASSES))}, got {kind!r}. Import the package that registers this event "
            "(@quietgrad.accounting.register_event) before the ledger is opened, or update quietgrad."
        )
    return _CLASSES[kind]


def event_to_dict(event: Event) -> dict[str, Any]:
    """Describe an event as plain data; floats survive JSON exactly.

    Returns:
        its kind, and what its class needs to make it again.

    Raises:
        ValueError: the class of the event is not registered.
    """
    # The class itself, not a base: a subclass under the name of its base would be read back with another price.
    kind = next((kind for kind, cls in _CLASSES.items() if cls is type(event)), None)
    if kind is None:
        raise ValueError(
            f"{type(event).__name__} is not registered, so no ledger can hold it. Decorate the class with "
            '@quietgrad.accounting.register_event("its kind").'
        )
    return {"kind": kind, **event.to_dict()}


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """Make the event that `event_to_dict` described.

    Returns:
        an equal event.

    Raises:
        ValueError: it describes no event, or one of a kind that is not registered.
    """
    fields = {key: value for key, value in data.items() if key != "kind"}
    try:
        event: Event = event_class(data["kind"]).from_dict(fields)
        return event
    except (KeyError, TypeError) as error:
        raise ValueError(f"Expected the description of an event, got {dict(data)}.") from error


def gaussian_precision(event: Event) -> float:
    """Return σ⁻² of the Gaussian noise in an event, 0 if there is none, infinite without noise.

    Returns:
        what Σ (S/s)² of everything released under this event must be.
    """
    return event.gaussian_precision

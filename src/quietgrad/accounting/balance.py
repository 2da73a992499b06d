"""What a plan still allows: charges counted against planned releases."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from quietgrad._errors import PrivacyError
from quietgrad.accounting.base import Event, event_from_dict, event_to_dict
from quietgrad.accounting.events import Phase, coalesce
from quietgrad.accounting.planning import Bill, Charge


class Balance:
    """Count charges against a plan.

    Guarantee: no record is charged more than the plan. Checked by: tests/accounting/test_ledger.py

    Args:
        plan: what may be charged at most. Order is free, counts are not. None allows everything.

    Attributes:
        plan: the same, equal neighbours counted together.

    Raises:
        ValueError: an event of the plan does not survive JSON.
    """

    def __init__(self, plan: Sequence[Phase] | None) -> None:
        self.plan = None if plan is None else coalesce(plan)
        self._bill = Bill()
        self._remaining = Counter[tuple[Event, float]]()
        for phase in self.plan or ():
            _check_survives_json(phase.event)
            self._remaining[phase.event, phase.rate] += phase.count

    @property
    def count(self) -> int:
        """How many charges were added."""
        return self._bill.charges

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What every record was charged at most so far, equal neighbours counted together."""
        return self._bill.phases

    def check(self, charge: Charge) -> None:
        """Refuse a charge that the plan does not hold, or no longer.

        Raises:
            PrivacyError: so it is, or it cannot be on one bill with the others.
        """
        self._bill.check(charge)
        event, rate = charge.event, charge.rate
        # A charge that another group has paid as often already is in the plan: the plan covers the dearest group.
        if self.plan is None or self._remaining[event, rate] > 0 or not self._bill.grows_by(charge):
            return
        if all((phase.event, phase.rate) != (event, rate) for phase in self.plan):
            raise PrivacyError(
                f"Expected a planned release, got {event} at rate={rate:g}, which the plan does not hold. "
                "Noise, shares, rates and their schedules are fixed before training: make a new plan "
                "and a new ledger."
            )
        raise PrivacyError(
            f"Expected at most the planned number of releases {event} at rate={rate:g}; all are used up "
            f"after {self.count} of {sum(phase.count for phase in self.plan)} steps. Stop here (replayed "
            "steps count too), or go on with Ledger.upcoming."
        )

    def add(self, charge: Charge) -> None:
        """Count a charge. `check` comes first; what a crash may have released is counted without it."""
        if self._bill.grows_by(charge):
            self._remaining[charge.event, charge.rate] -= 1
        self._bill.add(charge)

    def phases_with(self, charges: Iterable[Charge]) -> tuple[Phase, ...]:
        """Return what every record would be charged at most after these charges too; nothing is counted."""
        bill = copy.deepcopy(self._bill)
        for charge in charges:
            bill.add(charge)
        return bill.phases

    def room_for(self, charges: Iterable[Charge]) -> int:
        """Count how many of these charges, in their order, the plan still allows; nothing is counted."""
        bill, remaining, count = copy.deepcopy(self._bill), Counter(self._remaining), 0
        for charge in charges:
            if bill.grows_by(charge):
                if self.plan is not None and remaining[charge.event, charge.rate] < 1:
                    break
                remaining[charge.event, charge.rate] -= 1
            bill.add(charge)
            count += 1
        return count

    @property
    def upcoming(self) -> Phase | None:
        """The first phase of the plan that is not used up, and how many of it remain; None at the plan's end."""
        used = Counter[tuple[Event, float]]()
        for phase in self.plan or ():
            used[phase.event, phase.rate] += phase.count
        used.subtract(self._remaining)
        for phase in self.plan or ():
            # Several phases may have one event: what was used of it was used by the first of them.
            spent = min(phase.count, used[phase.event, phase.rate])
            used[phase.event, phase.rate] -= spent
            if spent < phase.count:
                return Phase(event=phase.event, rate=phase.rate, count=phase.count - spent)
        return None


def _check_survives_json(event: Event) -> None:
    """Refuse an event that a resumed run would not recognise in its own ledger.

    Raises:
        ValueError: reading back what is written gives another event.
    """
    if event_from_dict(json.loads(json.dumps(event_to_dict(event)))) != event:
        raise ValueError(
            f"Expected an event that survives JSON, got {event}. Make its to_dict and from_dict exact inverses."
        )

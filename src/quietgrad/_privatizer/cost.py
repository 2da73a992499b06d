"""What the releases of a run cost: its plan, and how many of them are left."""

from __future__ import annotations

from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.events import Phase
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import AFTER


class RunCost:
    """The plan of a run beside what its ledger holds.

    Args:
        ledger: of this run, and perhaps of others.
        planned: what the steps of this run cost.
    """

    def __init__(
        self, ledger: Ledger, mechanism: Mechanism, sampler: PoissonSampler, planned: tuple[Phase, ...]
    ) -> None:
        self._ledger, self._mechanism, self._sampler = ledger, mechanism, sampler
        # Each step is a release, though one phase may pay for several of them (`Charge.group`). Of what else is planned
        # the ledger's description says what comes after the steps; all others come before them.
        others = sum(phase.count for phase in ledger.plan or planned) - sum(phase.count for phase in planned)
        self._statistics = others - len(ledger.description.get(AFTER, ()))
        self._events_differ = len(planned) > 1
        self._by_groups = sampler.charge(mechanism.event(0), 0).group is not None
        self._room: tuple[int, int, int, int] | None = None

    def plan(self, step: int) -> tuple[Phase, ...]:
        """Return what all releases in the ledger cost at most, with those from this step on.

        Checked by: tests/accounting/test_shared_ledger.py
        """
        if self._ledger.plan is not None:
            return self._ledger.plan
        rest = range(step, self._sampler.steps)
        return self._ledger.phases_with(
            self._sampler.charge(self._mechanism.event(later), later) for later in rest
        )

    def steps_left(self, step: int) -> int:
        """Count the releases that the plan still allows."""
        if self._ledger.plan is None:  # other runs may have written to it, and nothing limits it
            return self._sampler.steps - step
        return self._room_from(step) if self._by_groups else self._sampler.steps - self.steps_made

    @property
    def steps_made(self) -> int:
        """How many steps the ledger holds, those included whose weights were lost."""
        return min(self._ledger.count - self._statistics, self._sampler.steps)

    def _room_from(self, step: int) -> int:
        """Count the steps that fit into what the plan has left, where one phase pays for steps of several groups."""
        loops, made = self._sampler.loops, self._ledger.count
        if self._room is None or self._room[0] != loops or step - self._room[1] != made - self._room[2]:
            rest = range(step, self._sampler.steps)
            charges = (self._sampler.charge(self._mechanism.event(later), later) for later in rest)
            self._room = (loops, step, made, self._ledger.room_for(charges))
        return self._room[3] - (step - self._room[1])

    def next_step(self, step: int) -> int:
        """Return the step to go on with: behind those that the ledger holds, where steps have different events.

        Steps may be paid for and their weights lost. Made again, they would find the events of their place in the
        schedule used up.
        """
        spent = step if self._ledger.plan is None else self.steps_made
        return spent if step < spent and self._events_differ else step

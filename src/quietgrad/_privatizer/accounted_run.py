"""One run of training: its plan and ledger, the draws that it releases, and its checkpoint."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quietgrad._capture.recorder import Recorder
from quietgrad._collective import Reducer
from quietgrad._errors import PrivacyError
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource
from quietgrad._privatizer.cost import RunCost
from quietgrad._privatizer.facts import open_ledger, run_facts
from quietgrad._privatizer.run_state import RunState, noise_of_run
from quietgrad._privatizer.same_records import check_same_records
from quietgrad._release.releaser import AccountedDraw, Releaser
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.events import Phase
from quietgrad.accounting.ledger import Ledger


class AccountedRun:
    """Count and release the draws of one run, step by step.

    A Privatizer has one, and so has a federated server, whose steps are rounds.

    Args:
        mechanism: what each step releases.
        sampler: says who takes part in which step.
        planned: what all steps cost together.
        ledger: of this run, and perhaps of others.
        source: of the noise.
        reducer: adds the sums of several ranks.
        state: how far the run has come; of a new run, nowhere.

    Attributes:
        cost: the plan beside what the ledger holds.
        releaser: writes the ledger's lines and adds the noise.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        sampler: PoissonSampler,
        *,
        planned: tuple[Phase, ...],
        ledger: Ledger,
        source: NoiseSource,
        reducer: Reducer,
        state: RunState,
    ) -> None:
        self._mechanism, self._sampler = mechanism, sampler
        self.ledger, self.source, self.state = ledger, source, state
        self.cost = RunCost(ledger, mechanism, sampler, planned)
        self.releaser = Releaser(
            ledger=ledger,
            states=state.noise,
            source=source,
            reducer=reducer,
            divisor=sampler.expected_batch,
        )

    def record(self) -> AccountedDraw:
        """Write this step into the ledger; what may then be released of it is returned."""
        step = self.state.step
        return self.releaser.record(self._sampler.charge(self._mechanism.event(step), step), step=step)

    @property
    def plan(self) -> tuple[Phase, ...]:
        """What all releases in the ledger cost at most, those to come included."""
        return self.cost.plan(self.state.step)

    def epsilon(self, delta: float, *, spent: bool) -> float:
        """Return ε of the whole plan at this δ; `spent=True` for what the ledger holds so far."""
        return epsilon(self.ledger.phases if spent else self.plan, delta)

    @property
    def is_private(self) -> bool:
        """Whether nobody can repeat its noise or its draws: false for fixed seeds."""
        return self.source.private and self._sampler.private

    def skip_spent_steps(self) -> bool:
        """Go on behind the steps that the ledger holds, where that matters (`RunCost.next_step`).

        Returns:
            whether any step is skipped.
        """
        step = self.state.step
        self.state.step = self.cost.next_step(step)
        return self.state.step > step

    def state_dict(self) -> dict[str, Any]:
        """Return how far the run has come, of which mechanism, what it protects, and where its ledger was."""
        return {
            **self.state.state_dict(),
            "ledger_head": self.ledger.head,
            "ledger_count": self.ledger.count,
            "mechanism": self._mechanism.describe(),
            "protected": self._sampler.describe(),
        }

    def check_checkpoint(self, saved: Mapping[str, Any]) -> None:
        """Refuse a checkpoint that this run cannot go on from.

        Raises:
            PrivacyError: it was made with another mechanism or unit, or the ledger holds less than it saw.
        """
        protected = self._sampler.describe()
        if saved.get("protected", protected) != protected:
            raise PrivacyError(
                f"The checkpoint protects {saved['protected']}, these batches {protected}. Go on with the same unit, "
                "most_records and data, or start a new run."
            )
        if saved["mechanism"] != self._mechanism.describe():
            raise PrivacyError(
                "The checkpoint was made with another mechanism. Build the same one, or start a new run."
            )
        self.ledger.verify_against(saved["ledger_head"], saved["ledger_count"])


def open_run(
    recorder: Recorder,
    mechanism: Mechanism,
    sampler: PoissonSampler,
    batches: PoissonBatches | PoissonSampler,
    *,
    reducer: Reducer,
    ledger: Ledger | str | Path | None,
    planned: tuple[Phase, ...],
    source: NoiseSource,
    public_seed: int | None,
    research: bool,
) -> AccountedRun:
    """Open a run on all ranks: they compare what they train, divide the draws, and share ledger and public seed.

    Raises:
        ValueError: on every rank, if they differ, or the ledger is of another run.
    """
    facts = functools.partial(
        run_facts, recorder.model, recorder.parameters, mechanism, sampler, source, research=research
    )
    reducer.agree(facts)
    check_same_records(reducer, batches)
    sampler.divide(reducer)
    shared = reducer.broadcast(lambda: open_ledger(ledger, planned, mechanism, sampler, source))
    seed = reducer.broadcast(lambda: secrets.randbits(48) if public_seed is None else public_seed)
    shard = (reducer.rank, reducer.world) if reducer.lockstep else None
    noise = noise_of_run(mechanism, sampler)
    state = RunState(recorder, mechanism, sampler, seed=seed, shard=shard, noise=noise)
    return AccountedRun(
        mechanism, sampler, planned=planned, ledger=shared, source=source, reducer=reducer, state=state
    )

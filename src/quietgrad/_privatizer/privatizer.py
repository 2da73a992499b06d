"""The straight line of one private step.

batch ─▶ capture ─▶ encode ─▶ clip ─▶ sum ─▶ noise ─▶ (all-reduce) ─▶ decode ─▶ post-process ─▶ p.grad
                                               └──▶ ledger
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import default_collate

from quietgrad._capture.losses import check_losses
from quietgrad._capture.recorder import Recorder
from quietgrad._collective import Reducer, default_reducer
from quietgrad._errors import PrivacyError
from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._guards.guards import Guards
from quietgrad._guards.row_count import RowCount
from quietgrad._independence.direct import LossesOf, check_losses_independent
from quietgrad._independence.in_loop import FIRST, LoopCheck
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource, as_source
from quietgrad._privatizer.accounted_run import open_run
from quietgrad._privatizer.contributions import Units
from quietgrad._privatizer.explanation import Explanation, explain
from quietgrad._privatizer.facts import step_facts
from quietgrad._privatizer.intake import Intake
from quietgrad._privatizer.research import Observer
from quietgrad._privatizer.sharding import one_verdict, prepare_shards, shared_coin, unwrap
from quietgrad._privatizer.step import Step, drop_grads, write_grads
from quietgrad._privatizer.trust import join_ranks
from quietgrad._representations.base import Public
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.collate import MapStyle
from quietgrad._sampling.padding import PadTo, collating
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.deltas import warn_delta
from quietgrad.accounting.events import Phase
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import plan


class Privatizer:
    """Make `p.grad` private.

    Call `backward(losses)` for each micro-batch, then `release()` once per batch.

    No `zero_grad()` is needed: `backward` drops the last release, and `release` writes the next.

    Args:
        model: a plain module; it is not wrapped, and `close()` leaves it exactly as it was.
        mechanism: calibrated (`qg.calibrate`) or with its noise set (`mechanism.with_noise`).
        batches: the PoissonBatches (or the PoissonSampler of a DataLoader) that training iterates over.
        ledger: a file to keep the ledger in, or a Ledger; in memory if left out.
        memory_budget: bytes that per-sample gradients may take at once.
        noise_source: "default", "device" (drawn where the model is) or "hardened", or a NoiseSource.
        public_seed: of masks, random bases and public losses, to make a run again; drawn if left out.
        research: allow observers that read private gradients; the run is then reported as not covered by ε.
        deterministic: choose the engine's algorithms by rule instead of by measurement.
        reducer: `qg.distributed.AllReduce()` for several ranks, or `Sharded()` for a model under `fully_shard`; each
            rank takes its part of one global draw, or holds records of its own.
        require_independence: refuse a loop of which it cannot be checked whether records influence each other. False
            accepts it, and the run is reported as not covered by ε. A loop that mixes records is always refused.
        compile: run the model compiled: True, or options of `torch.compile`. See docs/devices.md.

    Attributes:
        mechanism, plan, sampler, ledger: what is released, how often, from which draws, and what has been.
        parameters: the trainable parameters by name: those whose `grad` a release writes.

    Raises:
        ValueError: the mechanism has no noise yet, the model mixes samples or holds a layer that cannot be private, or
            the ledger is of another run.

    Example:
        private = qg.Privatizer(model, mechanism, batches)
        for x, y in next(iter(batches)).split(64):
            private.backward(losses(model, x, y))
        private.release()
    """

    def __init__(
        self,
        model: nn.Module,
        mechanism: Mechanism,
        batches: PoissonBatches | PoissonSampler,
        *,
        ledger: Ledger | str | Path | None = None,
        memory_budget: int | None = None,
        noise_source: str | NoiseSource = "default",
        public_seed: int | None = None,
        research: bool = False,
        deterministic: bool = False,
        reducer: Reducer | None = None,
        require_independence: bool = True,
        compile: bool | Mapping[str, Any] = False,  # noqa: A002 - the word that torch uses
    ) -> None:
        model = unwrap(model)
        sampler = batches.sampler if isinstance(batches, PoissonBatches) else batches
        sampler.refuse_second_owner()
        self.mechanism: Final = mechanism
        self.sampler: Final = sampler
        planned = plan(mechanism, sampler)
        self._reducer = reducer = default_reducer() if reducer is None else reducer
        join_ranks(reducer, mechanism, sampler)
        sharded = prepare_shards(model, mechanism, batches, reducer)
        self._recorder = Recorder(
            model,
            memory_budget=memory_budget,
            deterministic=deterministic,
            public_by_rule=reducer.world > 1,
            sharded=sharded,
            one_pass=one_verdict(reducer) if reducer.lockstep else None,
            compile_options=None if compile is False else {} if compile is True else compile,
        )
        self.parameters: Final[Mapping[str, nn.Parameter]] = self._recorder.parameters
        self._research, self._observers = research, list[Observer]()
        self._source = as_source(noise_source)
        self._run = open_run(
            self._recorder,
            mechanism,
            sampler,
            batches,
            reducer=reducer,
            ledger=ledger,
            planned=planned,
            source=self._source,
            public_seed=public_seed,
            research=research,
        )
        self.ledger: Final = self._run.ledger
        self._state = self._run.state
        self._owns_ledger = not isinstance(ledger, Ledger)
        self._rows = RowCount(sampler, batches if isinstance(batches, PoissonBatches) else None)
        self._users = None if sampler.users is None else Units(sampler)
        self._current: Step | None = None
        padding = batches.padding if isinstance(batches, PoissonBatches) else None
        self.independence: Final = LoopCheck(model, required=require_independence, padding=padding)
        if reducer.lockstep:
            self.independence.flip_coin = shared_coin(reducer)
            self.independence.end_of_questions = weakref.WeakMethod(self._add_pending)
        lockstep = reducer if reducer.lockstep else None
        self._guards = Guards(self._recorder, batches, self.begin_step, self.independence, lockstep)
        self.independence.check_model = self._guards.before_release
        self._intake = Intake(
            self._recorder, self._rows, self._users, self.independence, mechanism, is_watched=research
        )
        self._guards.attach()
        self._skip_spent_steps()

    # ---- one step -------------------------------------------------------------------------------------------

    def backward(self, losses: Float[Tensor, " n"] | Float[Tensor, "n views"]) -> None:
        """Add a micro-batch: capture, encode, clip and sum its per-sample gradients.

        Args:
            losses: one loss per row (`reduction="none"`), or `[n, views]` for augmented views of each record, which
                the model saw record by record (row i·views + j); a record's gradients are averaged, then clipped.

        Raises:
            ValueError: the losses are not one number per row, or not those of the rows that were drawn.
        """
        check_losses(losses)
        self._guards.before_backward(losses)
        if self.independence.is_asking:
            self._intake.answer(losses)
            return
        if not self.independence.is_repeating:
            if self._rows.begun_again():
                self._drop_sums()
            self._add_pending()
        losses = self._intake.count(losses, self.step)
        self.begin_step()
        drop_grads(self._state.space)
        is_asked_about = self._intake.capture(losses, self.step, self.pool)
        # Ranks in lockstep add theirs together, after all questions about the micro-batch.
        if not is_asked_about and not self._reducer.lockstep:
            self._add_pending()
        recorder = self._recorder
        self.independence.note(recorder.graph_shape, recorder.unattributed, is_odd=recorder.met_odd_rows)

    def _add_pending(self) -> None:
        """Add the last micro-batch, if it was kept back to be handed out again."""
        if self._intake.is_pending:
            step = self.begin_step()
            for grads in self._intake.take():
                self._add(step, grads)

    def _add(self, step: Step, grads: BlockwiseGrads) -> None:
        for observer in self._observers:
            observer.micro_batch(grads, step.public, self.mechanism)
        step.add(grads)

    def pool(self, grads: BlockwiseGrads, first: int = 0, counts: list[int] | None = None) -> BlockwiseGrads:
        """Return the gradients of what is protected: each record's own, or those of users.

        Args:
            grads: of records.
            first: the place of the first of them in the draw.
            counts: how many records each user has; those of the draw if left out.
        """
        return grads if self._users is None else self._users.pool(grads, self.step, first, counts)

    def release(self) -> None:
        """Add noise, once per batch (empty ones too), and overwrite `p.grad` with the public gradient.

        Raises:
            ValueError: no batch was drawn, some of its rows were not seen, or the plan is used up.
        """
        self._reducer.make_together(self._check_before_release)
        self._add_pending()
        step = self.begin_step()  # an empty batch had no forward
        if self._reducer.world > 1:
            self._reducer.agree(lambda: step_facts(step, self.sampler, self.ledger))
        # The ledger's line is on disk before any rank draws noise; leaving the block checks that the two agree.
        draw, _ = self._reducer.make_together(self._run.record)
        assert draw is not None
        try:
            with draw:
                released = step.release(draw)
            update = self._state.post_process(step.decode(released), step.public)
            for observer in self._observers:
                observer.step(self.step, released, update)
            write_grads(self._state.space, update)
        except BaseException:
            # Post-processing, or whoever stopped it, may have seen the release. The draw must not be released again:
            # two releases of one draw cost more than two draws. Noise that was kept must not meet these sums again.
            self._state.noise.forget_secrets()
            self._end_release()
            raise
        self._end_release()
        if self.step >= min(FIRST, self.sampler.steps) and self.covered:
            self.independence.warn_unasked()

    def _check_before_release(self) -> None:
        self._rows.finish(self.step)
        self._guards.before_release()
        self.independence.refuse_unanswered()

    def begin_step(self) -> Step:
        """Begin the step, with codecs of the weights as they are now, unless it has begun; return it.

        The first private forward of a batch does so, and so does the release of an empty batch. To be called only by
        code that inserts something into a step, or reads its codecs, before that.
        """
        if self._current is None:
            # A forward under autocast begins the step. Bases are computed in full precision all the same.
            with torch.autocast(self._device_type, enabled=False):
                self._current = self._make_step(self._state.public())
            self._drop_sums()
        return self._current

    @property
    def step_in_progress(self) -> Step | None:
        """The step that has begun and is not released yet."""
        return self._current

    @property
    def current(self) -> Step:
        """Deprecated name of `begin_step()`."""
        warnings.warn(
            "Privatizer.current begins a step, which a property should not. Call begin_step(), or read "
            "step_in_progress, which begins nothing.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.begin_step()

    @property
    def _device_type(self) -> str:
        return next(iter(self.parameters.values())).device.type

    def _make_step(self, public: Public) -> Step:
        return Step(self.mechanism, public, self._source, self._reducer)

    def _drop_sums(self) -> None:
        """Drop what was added so far, also of a user whose rows were cut."""
        self._intake.drop()
        if self._current is not None:
            self._current.clear()

    def _end_release(self) -> None:
        self._guards.end_step()
        self._end_step()

    def _end_step(self) -> None:
        self._rows.next_step(self.step)
        self._current = None
        self._state.step += 1

    @property
    def step(self) -> int:
        """How many steps are over: the number of the one in progress."""
        return self._state.step

    # ---- what it cost ---------------------------------------------------------------------------------------

    @property
    def plan(self) -> tuple[Phase, ...]:
        """What all releases in the ledger cost at most, those to come included.

        A ledger that was handed over may plan more than these steps. One without a plan may hold other runs: then this
        is what it holds so far and the rest of this run. Checked by: tests/accounting/test_shared_ledger.py
        """
        return self._run.plan

    def epsilon(self, delta: float, *, spent: bool = False) -> float:
        """ε of the whole plan at this δ; `spent=True` for what the ledger holds so far.

        Report the plan whenever anything (early stopping, choosing a checkpoint) depended on the releases.
        """
        warn_delta(delta, self.sampler.units)
        return self._run.epsilon(delta, spent=spent)

    @property
    def steps_left(self) -> int:
        """Releases that the plan still allows; replayed steps of a resumed run have used some up."""
        return self._run.cost.steps_left(self.step)

    @property
    def steps_made(self) -> int:
        """Steps that the ledger holds, also those whose weights a crash has lost."""
        return self._run.cost.steps_made

    @property
    def covered(self) -> bool:
        """Whether ε describes this run.

        False after research observers, fixed seeds or replayed draws, and where independence could not be checked.
        """
        return self._run.is_private and not self._research and not self.independence.unchecked

    def explain(self, *inputs: Any) -> Explanation:
        """Per layer the algorithm, time and memory; per release its dimension, sensitivity and noise.

        Given model inputs, also proves on them that no sample's output depends on another sample. Changes nothing: a
        step that has not begun is looked at and not begun.

        Raises:
            ValueError: on those inputs a sample's output depends on another sample.
        """
        step = self._current or self._make_step(self._state.preview())
        with self._guards.pause():
            return explain(step, self._recorder, self.independence, self.sampler, inputs)

    def check_independence(
        self,
        losses_of: LossesOf,
        dataset: MapStyle,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        *,
        pad_to: PadTo | None = None,
    ) -> None:
        """Check that no record of a batch influences the loss or gradient of another one.

        For loops over a DataLoader: a loop over `PoissonBatches` is asked by itself. Nothing is released.

        Args:
            losses_of: the loop's own code, from a collated batch to one loss per record.
            dataset: where records come from.
            collate_fn: the loader's.
            pad_to: "longest" states that it pads to the longest record of a batch; without that, it is refused.

        Raises:
            PrivacyError: they do, or it cannot be checked, or the length of a batch follows its records.
        """
        rule, collate = collating(pad_to, collate_fn)
        with self._recorder.pause():
            verdict = check_losses_independent(losses_of, dataset, collate, model=self._recorder.model)
        self.independence.record(verdict, rule)

    def watch(self, observer: Observer) -> None:
        """Let an observer read private gradients.

        Raises:
            PrivacyError: outside research mode.
        """
        if not self._research:
            raise PrivacyError(
                "Observers read private gradients, which ε does not cover. Pass research=True to the Privatizer; the "
                "run is then reported as not covered."
            )
        self._observers.append(observer)

    # ---- resume and end -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything public that a resumed run needs; noise and sampling start from fresh entropy."""
        return self._run.state_dict()

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: it was made with another mechanism or unit, or the ledger holds less than it saw.
        """
        self._run.check_checkpoint(saved)
        self._state.load_state_dict(saved)
        self._current = None
        self._guards.begin_again()
        self.sampler.skip_to(self.step)
        self._skip_spent_steps()

    def _skip_spent_steps(self) -> None:
        if self._run.skip_spent_steps():
            self.sampler.skip_to(self.step)

    def close(self) -> None:
        """Take the hooks off, so that the model is exactly what it was; close a ledger that was given as a path."""
        self._guards.detach()
        self._rows.detach()
        if self._owns_ledger:
            self.ledger.close()

    def __enter__(self) -> Privatizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

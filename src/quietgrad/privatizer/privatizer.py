"""The straight line of one private step.

batch ─▶ capture ─▶ encode ─▶ clip ─▶ sum ─▶ noise ─▶ (all-reduce) ─▶ decode ─▶ post-process ─▶ p.grad
                                               └──▶ ledger
"""

from __future__ import annotations

import math
import secrets
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.accounting.calibrate import plan
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.ledger import Ledger
from quietgrad.capture.losses import check_losses
from quietgrad.capture.recorder import Recorder
from quietgrad.collective import Facts, Reducer, default_reducer
from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.stages import ClippedSum, PerSampleGrads, Released
from quietgrad.gradients.views import average_views
from quietgrad.mechanism.mechanism import Mechanism
from quietgrad.noise.base import NoiseDraw
from quietgrad.noise.sources import NoiseSource, as_source
from quietgrad.privatizer.explanation import Explanation, explain
from quietgrad.privatizer.facts import run_facts, step_facts
from quietgrad.privatizer.research import Observer, Watch
from quietgrad.privatizer.rows import RowCount
from quietgrad.representations.base import State
from quietgrad.representations.public import Public
from quietgrad.representations.public_view import PublicView
from quietgrad.representations.refresh import Refresher
from quietgrad.sampling.batches import PoissonBatches
from quietgrad.sampling.poisson import PoissonSampler


class Privatizer:
    """Makes `p.grad` private: `backward(losses)` for each micro-batch, then `release()` once per batch.

    No `zero_grad()` is needed: `backward` drops the last release, and `release` writes the next.

    Args:
        model: a plain module; it is not wrapped, and `close()` leaves it exactly as it was.
        mechanism: calibrated (`qg.calibrate`) or with its noise set (`mechanism.with_noise`).
        batches: the PoissonBatches (or the PoissonSampler of a DataLoader) that training iterates over.
        ledger: a file to keep the ledger in, or a Ledger; in memory if left out.
        memory_budget: bytes that per-sample gradients may take at once.
        noise_source: "default" or "hardened", or a NoiseSource.
        research: allow observers that read private gradients; the run is then reported as not covered by ε.
        deterministic: choose the engine's ways by rule instead of by measurement.
        reducer: `qg.distributed.AllReduce()` for several ranks; each takes its part of one global draw.
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
        research: bool = False,
        deterministic: bool = False,
        reducer: Reducer | None = None,
    ) -> None:
        self.mechanism = mechanism
        self._sampler = batches.sampler if isinstance(batches, PoissonBatches) else batches
        self._batches = batches if isinstance(batches, PoissonBatches) else None
        self.plan = plan(mechanism, self._sampler.rate, self._sampler.steps)
        self._reducer = default_reducer() if reducer is None else reducer
        self._recorder = Recorder(
            model,
            memory_budget=memory_budget,
            deterministic=deterministic,
            public_by_rule=self._reducer.world > 1,
        )
        self._view = PublicView(self._recorder, steps=self._sampler.steps, rate=self._sampler.rate)
        self._source = as_source(noise_source)
        self._watch = Watch(enabled=research)
        self._reducer.agree(lambda: self._run_facts(model))
        self._sampler.divide(self._reducer)
        self._ledger = self._reducer.broadcast(lambda: _ledger(ledger, self.plan, mechanism, self._sampler))
        self._owns_ledger = not isinstance(ledger, Ledger)
        self._refresher = Refresher()
        self._post_states: list[State] = []
        self._seed = self._reducer.broadcast(lambda: secrets.randbits(48))
        self.step = 0
        self._rows = RowCount(self._sampler, self._batches)
        self._public: Public | None = None
        self._sums: list[ClippedSum] = []
        self._recorder.attach()

    # ---- one step -------------------------------------------------------------------------------------------

    def backward(self, losses: Float[Tensor, " n"]) -> None:
        """Add a micro-batch: capture, encode, clip and sum its per-sample gradients.

        Args:
            losses: one loss per row (`reduction="none"`), or `[n, views]` for augmented views of each record, which
                the model saw record by record (row i·views + j); a record's gradients are averaged, then clipped.
        """
        check_losses(losses)
        self._rows.consume(self.step, len(losses))
        public = self._begin()
        self._drop_last_release()
        grads = self._recorder.collect(losses.flatten())
        if losses.dim() == 2:
            grads = average_views(grads, views=losses.shape[1])
        self._watch.micro_batch(grads, public, self.mechanism)
        sums = [self._encoded_sum(index, grads) for index in range(len(self.mechanism.releases))]
        # The first micro-batch needs no zeros to be added to: a pass over all parameters less.
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)] if self._sums else sums

    def release(self) -> None:
        """Add noise, once per batch (empty ones too), and overwrite `p.grad` with the public gradient."""
        self._rows.finish(self.step)
        public = self._begin()
        self._reducer.agree(lambda: self._step_facts(public))
        # On disk before anything is visible: a crash from here on can only over-count.
        self._ledger.record(self.mechanism.event(self.step), self._sampler.rate, step=self.step)
        self._sums = self._sums or [self._zero_sum(index) for index in range(len(self.mechanism.releases))]
        released = [self._add_noise(index) for index in range(len(self._sums))]
        self._check_conservation(released)
        update = self._post_process(self._decode(released, public), public)
        self._watch.step(self.step, released, update)
        self._write(update)
        self.step += 1
        self._public, self._sums = None, []
        self._rows.next_step()

    def _run_facts(self, model: nn.Module) -> Facts:
        return run_facts(
            model,
            self._recorder.parameters,
            self.mechanism,
            self._sampler,
            self._source,
            research=self._watch.enabled,
        )

    def _step_facts(self, public: Public) -> Facts:
        return step_facts(self.step, public, self.mechanism, self._sampler, self._ledger)

    def _begin(self) -> Public:
        """Refresh the representations, once per logical step, before the first micro-batch."""
        if self._public is None:
            self._public = self._refresher.begin(self._view.at(self.step, self._seed))
            for index, release in enumerate(self.mechanism.releases):
                release.clip.validate(self._codec(index).space)
        return self._public

    def _zero_sum(self, index: int) -> ClippedSum:
        release = self.mechanism.releases[index]
        codec = self._codec(index)
        like = next(iter(self._recorder.parameters.values()))
        blocks = {
            name: torch.zeros(s, dtype=like.dtype, device=like.device) for name, s in codec.space.items()
        }
        return ClippedSum(blocks=blocks, sensitivity=release.clip.sensitivity(self.step))

    def _codec(self, index: int) -> Any:
        assert self._public is not None
        return self._public.codec(self.mechanism.releases[index].representation)

    def _encoded_sum(self, index: int, grads: PerSampleGrads) -> ClippedSum:
        return self.mechanism.releases[index].clip(self._codec(index).encode(grads), self.step)

    def _add_noise(self, index: int) -> Released:
        draw = NoiseDraw(
            std=self.mechanism.std(self.mechanism.releases[index], self.step),
            divisor=self._sampler.expected_batch,
            source=self._source,
            reducer=self._reducer,
            step=self.step,
        )
        return self.mechanism.noise.release(self._sums[index], draw)

    def _check_conservation(self, released: list[Released]) -> None:
        """Law 0: Σ (S/s)² of what was released is what the ledger was told."""
        precision = sum(part.precision for part in released)
        multiplier = self.mechanism.multiplier(self.step)
        told = multiplier**-2 if multiplier > 0 else math.inf
        if not math.isclose(precision, told, rel_tol=1e-9):
            raise RuntimeError(
                f"Released precision {precision} differs from the accounted {told}: this is a bug."
            )

    def _decode(self, released: list[Released], public: Public) -> Blocks:
        total: Blocks = {}
        for release, part in zip(self.mechanism.releases, released, strict=True):
            public.observe(release.representation, part)
            for name, block in (public.codec(release.representation).decode(part) or {}).items():
                total[name] = total[name] + block if name in total else block
        return total

    def _post_process(self, update: Blocks, public: Public) -> Blocks:
        if len(self._post_states) != len(self.mechanism.post):
            self._post_states = [post.init(public) for post in self.mechanism.post]
        for post, state in zip(self.mechanism.post, self._post_states, strict=True):
            update = post.apply(update, public, state)
        return update

    def _drop_last_release(self) -> None:
        """As zero_grad() does: `release` will overwrite it, and the backward needs the memory."""
        for parameter in self._recorder.parameters.values():
            parameter.grad = None

    def _write(self, update: Blocks) -> None:
        for name, parameter in self._recorder.parameters.items():
            block = update.get(name)
            parameter.grad = torch.zeros_like(parameter) if block is None else block.to(parameter.dtype)

    # ---- what it cost ---------------------------------------------------------------------------------------

    def epsilon(self, delta: float, *, spent: bool = False) -> float:
        """ε of the whole plan at this δ; `spent=True` for what the ledger holds so far.

        Report the plan whenever anything (early stopping, choosing a checkpoint) depended on the releases.
        """
        return epsilon(self._ledger.phases if spent else self.plan, delta)

    @property
    def steps_left(self) -> int:
        """Releases that the plan still allows; replayed steps of a resumed run have used some up."""
        return self._sampler.steps - self._ledger.count

    @property
    def covered(self) -> bool:
        """Whether ε describes this run: false after research observers, fixed seeds or replayed draws."""
        return self._source.private and self._sampler.private and not self._watch.enabled

    def explain(self, *inputs: Any) -> Explanation:
        """Per layer the engine's way, time and memory; per release its dimension, sensitivity and noise.

        Given model inputs, also proves on them that no sample's output depends on another sample.
        """
        return explain(
            self.mechanism,
            self._recorder,
            self._public or self._refresher.begin(self._view.at(self.step, self._seed)),
            self._sampler.expected_batch,
            inputs,
        )

    def watch(self, observer: Observer) -> None:
        """Let an observer read private gradients (research mode only)."""
        self._watch.add(observer)

    # ---- resume and end -------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything public that a resumed run needs; noise and sampling start from fresh entropy."""
        return {
            "step": self.step,
            "public_seed": self._seed,
            "representations": self._refresher.state_dict(),
            "post": self._post_states,
            "ledger_head": self._ledger.head,
            "ledger_count": self._ledger.count,
            "mechanism": self.mechanism.describe(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint: the same mechanism, a ledger that holds at least what the checkpoint saw."""
        if saved["mechanism"] != self.mechanism.describe():
            raise ValueError(
                "The checkpoint was made with another mechanism. Build the same one, or start a new run."
            )
        self._ledger.verify_against(saved["ledger_head"], saved["ledger_count"])
        self.step = saved["step"]
        self._seed = saved["public_seed"]
        self._refresher.load_state_dict(saved["representations"])
        self._post_states = saved["post"]
        self._sampler.skip_to(self.step)

    def close(self) -> None:
        """Take the hooks off, so that the model is exactly what it was; close a ledger that was given as a path."""
        self._recorder.detach()
        self._rows.detach()
        if self._owns_ledger:
            self._ledger.close()

    def __enter__(self) -> Privatizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ledger(
    ledger: Ledger | str | Path | None, planned: Any, mechanism: Mechanism, sampler: PoissonSampler
) -> Ledger:
    if isinstance(ledger, Ledger):
        return ledger
    path = None if ledger is None else Path(ledger)
    description = {"mechanism": mechanism.describe(), "records": sampler.records}
    return Ledger(path, plan=planned, description=description)

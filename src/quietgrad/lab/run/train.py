"""One private run, read top to bottom. `python -m quietgrad.lab.run.train CONFIG --out DIR`, also under torchrun."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._kernels.generators import renew_generators
from quietgrad._privatizer.explanation import ReleaseReport
from quietgrad.accounting.ledger import Ledger
from quietgrad.distributed import Reducer
from quietgrad.lab.data import Parts
from quietgrad.lab.files import to_json
from quietgrad.lab.run.augment import make_views
from quietgrad.lab.run.checkpoints import Checkpoints, check_any_kept, tell_lost
from quietgrad.lab.run.config import Config, load_config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.interrupt import Stopped, StopRequest
from quietgrad.lab.run.memory import peak_megabytes
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.metrics import curve_values, measure
from quietgrad.lab.run.presets import QUIET
from quietgrad.lab.run.progress import Reporter, Silent
from quietgrad.lab.run.released_metrics import release_metrics
from quietgrad.lab.run.setup import Setup, check_device, momentum_of, set_up
from quietgrad.lab.run.statement.model_card import FILE as CARD_FILE
from quietgrad.lab.run.statement.model_card import model_card
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.statement.statement import FILE as STATEMENT_FILE
from quietgrad.lab.run.statement.statement import statement_of
from quietgrad.lab.run.table_probe import set_up_probe


@dataclass
class Outcome:
    """What a run achieved and what it cost.

    Args:
        records: N; users, where they are protected.
        epsilon: of the whole plan, which is what a released model costs.
        covered: whether ε describes the run (no research mode, no fixed noise or draws).
        releases: dimension, sensitivity and noise of each release of a step.
        noise_to_signal: length of a step's noise over the longest signal that the clips let through.
        steps: updates that the weights have.
        lost: releases that ε counts and the weights do not have, since the run was broken off after them.
        independence: whether it was checked that records do not influence each other, and their lengths, in words.
        accuracy: on the test part; NaN without one, or where a number is predicted.
        metrics: what else was measured there (`Metrics`); empty without a test part, unless counts of the private rows
            were released (`ReleasedMetrics`).
        curve: step, ε spent and test accuracy, about twenty times.
    """

    method: str
    accuracy: float
    epsilon: float
    delta: float
    seconds: float
    memory_mb: float
    steps: int
    records: int
    batch: float
    parameters: int
    covered: bool
    noise_multiplier: float
    noise_to_signal: float
    releases: list[dict[str, Any]]
    lost: int = 0
    independence: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass
class Run:
    """A run in progress: what a checkpoint holds beside the ledger."""

    setup: Setup
    private: qg.Privatizer
    updates: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def state(self) -> dict[str, Any]:
        own = {"curve": self.curve, "seconds": self.seconds, "updates": self.updates}
        return {**self.setup.state(), "private": self.private.state_dict(), **own}

    def load(self, saved: dict[str, Any]) -> None:
        self.setup.load(saved)
        self.private.load_state_dict(saved["private"])
        self.curve, self.started = saved["curve"], self.started - saved["seconds"]
        self.updates = saved["updates"]

    @property
    def lost(self) -> int:
        """Releases that the ledger holds and the weights do not have."""
        return self.lost_steps + self.setup.lost_statistics

    @property
    def lost_steps(self) -> int:
        return self.private.steps_made - self.updates

    def step(self, batch: Any) -> None:
        """One private step: capture, release, update."""
        config = self.setup.config
        for x, y in batch.split(config.training.micro_batch):
            self.private.backward(losses_of(self.setup.model, x, y, config))
        self.private.release()
        self.setup.update()
        self.updates += 1

    def evaluate(self) -> dict[str, float]:
        """Return a point of the curve; test data are public and never enter training."""
        found = measure(self.setup.evaluated, self.setup.parts.test, self.setup.parts.target)
        point = {
            "step": self.private.step,
            "epsilon": self.private.epsilon(self.setup.config.privacy.delta, spent=True),
            **curve_values(found),
        }
        self.curve.append(point)
        return point

    def outcome(self) -> Outcome:
        config, private = self.setup.config, self.private
        releases = private.explain().releases
        metrics = measure(self.setup.evaluated, self.setup.parts.test, self.setup.parts.target)
        return Outcome(
            method=config.method.name,
            accuracy=curve_values(metrics)["accuracy"],
            metrics={} if metrics is None else metrics.as_dict(),
            epsilon=private.epsilon(config.privacy.delta),
            delta=config.privacy.delta,
            seconds=self.seconds,
            memory_mb=peak_megabytes(),
            steps=self.updates,
            lost=self.lost,
            records=self.setup.batches.units,
            batch=config.training.batch,
            parameters=sum(p.numel() for p in self.setup.model.parameters() if p.requires_grad),
            covered=private.covered,
            independence=private.independence.describe(),
            noise_multiplier=private.mechanism.multiplier(0),
            noise_to_signal=noise_to_signal(releases, config.training.batch),
            releases=[dataclasses.asdict(release) for release in releases],
            curve=self.curve,
        )


def noise_to_signal(releases: Sequence[ReleaseReport], batch: float) -> float:
    """√(Σ_j d_j s_j²) / (qN·√(Σ_j S_j²)): noise against a batch whose gradients all point the same way at their bound.

    Known before training and free of data; the true signal is private, and shorter. Post-processing comes after it.
    """
    noise = math.hypot(*(release.noise_norm for release in releases))
    return noise / (batch * math.hypot(*(release.sensitivity for release in releases)))


def losses_of(model: nn.Module, x: Tensor, y: Tensor, config: Config) -> Tensor:
    """Return one loss per record, or one per view of it; labels that are numbers have half of the squared error."""
    if y.is_floating_point():
        errors = model(x)[:, 0] - y.nan_to_num(0.0)
        return torch.where(y.isfinite(), errors.square() / 2, 0.0)
    if not config.augment.active:
        return F.cross_entropy(model(x), y, reduction="none")
    views = config.augment.views
    logits = model(make_views(x, config.augment))
    return F.cross_entropy(logits, y.repeat_interleave(views), reduction="none").view(len(x), views)


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    reporter: Reporter | None = None,
    reducer: Reducer | None = None,
    parts: Parts | None = None,
    device: str = "cpu",
) -> Outcome:
    """Train by the config and keep everything in `out`; an interrupt leaves a checkpoint and a true ledger.

    Args:
        parts: the config's task, read before; several runs of one task share its features.
        device: where the model is trained.
    """
    began = time.perf_counter()
    first = reducer is None or reducer.rank == 0
    folder, reporter = RunFolder(out), reporter or Silent()
    ledger: Ledger | Path
    statistics: qg.Statistics | None = None
    if config.method.name == QUIET:
        check_device(device)
        setup, program, statistics = set_up_probe(
            config, folder, resume=resume, data_dir=data_dir, device=device
        )
        mechanism, ledger = program.training, statistics.ledger
    else:
        setup = set_up(config, data_dir=data_dir, parts=parts, device=device)
        mechanism = build_mechanism(
            config.method,
            config.privacy,
            setup.parts,
            setup.model,
            setup.batches,
            momentum_of(config.training),
        )
        ledger = folder.ledger
        if resume:
            folder.resume(config)
        elif first:
            folder.start(config, setup.parts.record)
    # Several ranks would hear of an interrupt at different steps and wait for each other: they stop at once.
    listening = StopRequest() if reducer is None else nullcontext(StopRequest())
    with (
        closing(ledger) if isinstance(ledger, Ledger) else nullcontext(),
        listening as stop,
        qg.Privatizer(setup.model, mechanism, setup.batches, ledger=ledger, reducer=reducer) as private,
        reporter,
    ):
        run = Run(setup, private, started=began)
        saved = folder.load_checkpoint() if resume else None
        if saved is not None:
            run.load(saved)
        tell_lost(run.lost_steps, private.steps_left, out)
        renew_generators()  # the config publishes the seed of the initial weights
        checkpoints = Checkpoints(
            lambda: folder.save_checkpoint(run.state()), config.training.checkpoint_every
        )
        reporter.start(config, private, setup)
        every = evaluation_interval(setup.batches.steps)
        try:
            for batch in setup.batches if private.steps_left else ():
                run.step(batch)
                if private.step % every == 0:
                    reporter.evaluated(run.evaluate())
                reporter.stepped(private.step)
                if first:
                    checkpoints.stepped(private.step)
                if (
                    stop.asked or not private.steps_left
                ):  # replayed steps use the plan up before the last batch
                    break
        finally:
            if first:
                checkpoints.save()
        if private.steps_left:
            raise Stopped(_how_to_go_on(run, out))
        check_any_kept(run.updates, setup.batches.steps, out)
        outcome = run.outcome()
        if statistics is not None and statistics.program.after:
            outcome.metrics = release_metrics(setup, statistics)
            outcome.accuracy = outcome.metrics.get("accuracy", math.nan)
    if first:
        finish(folder, outcome.__dict__, setup.evaluated)
    return outcome


def finish(folder: RunFolder, results: dict[str, Any], model: nn.Module) -> None:
    """Keep the weights, what may be said of them, and last the results."""
    folder.save_weights({name: value.cpu() for name, value in model.state_dict().items()})
    statement = statement_of(read_run(folder.path, results=results))
    folder.write(STATEMENT_FILE, to_json(statement))
    folder.write(CARD_FILE, model_card(statement))
    folder.finish(results)


def evaluation_interval(steps: int) -> int:
    """About twenty points on the curve: each asks the accountant and goes through the test part."""
    return max(1, steps // 20)


def _how_to_go_on(run: Run, out: Path) -> str:
    config, private = run.setup.config, run.private
    spent = private.epsilon(config.privacy.delta, spent=True) if private.step else 0.0
    return (
        f"Stopped after {private.step} of {run.setup.batches.steps} steps, ε = {spent:.4f} spent. "
        f"Go on with --resume --out {out}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="SECTION.KEY=VALUE")
    args = parser.parse_args()
    reducer: Reducer | None = None
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:  # torchrun says so
        dist.init_process_group("gloo")  # the lab trains on CPUs
        reducer = qg.distributed.AllReduce()
    config = load_config(args.config, args.changes)
    outcome = train(
        config, args.out, resume=args.resume, data_dir=args.data_dir, reducer=reducer, device=args.device
    )
    if reducer is None or reducer.rank == 0:
        print(f"{outcome.method}: accuracy {outcome.accuracy:.4f} at epsilon {outcome.epsilon:.4f}")
    if reducer is not None:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""One private run, from a config to a model, read top to bottom. `python -m quietgrad.lab.train CONFIG --out DIR`."""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.augment import make_views
from quietgrad.lab.averaging import WeightAverage
from quietgrad.lab.config import Config, TrainingConfig, load_config
from quietgrad.lab.data import Parts, load
from quietgrad.lab.errors import LabError
from quietgrad.lab.methods import build_mechanism
from quietgrad.lab.models import build
from quietgrad.lab.progress import Reporter, Silent
from quietgrad.lab.run_folder import RunFolder
from quietgrad.lab.warm_start import train_on_public


@dataclass
class Outcome:
    """What a run achieved and what it cost."""

    method: str
    accuracy: float
    epsilon: float
    delta: float
    seconds: float
    steps: int
    covered: bool
    noise_multiplier: float
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass
class Setup:
    """All objects of a run, the user's own kinds: nothing here knows that training is private."""

    config: Config
    parts: Parts
    model: nn.Module
    batches: qg.PoissonBatches
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    average: WeightAverage | None

    @property
    def evaluated(self) -> nn.Module:
        """The model that is released: the averaged one if there is one."""
        return self.model if self.average is None else self.average.model

    def state(self) -> dict[str, Any]:
        average = None if self.average is None else self.average.state_dict()
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {"average": average, **{name: part.state_dict() for name, part in parts.items()}}

    def load(self, saved: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(saved["model"])
        except RuntimeError:
            raise LabError(
                "The checkpoint is of another model. Resume with the config it was made with."
            ) from None
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        if self.average is not None:
            self.average.load_state_dict(saved["average"])


def set_up(config: Config, *, data_dir: Path | None = None) -> Setup:
    """Data, model, batches and optimizer of a config. The seed fixes initial weights, never noise or batches."""
    torch.manual_seed(config.training.seed)
    parts = load(data_dir=data_dir, **config.data.model_dump())
    model = build(config.model.name, parts.input_shape, parts.num_classes, **config.model.options)
    rate = config.training.batch / len(parts.private)
    if rate > 1:
        raise LabError(
            f"training.batch = {config.training.batch} exceeds the {len(parts.private)} private records."
        )
    batches = qg.PoissonBatches(parts.private, rate=rate, steps=max(1, round(config.training.epochs / rate)))
    if config.training.warm_start == "public":
        train_on_public(model, parts)
    optimizer = make_optimizer(model, config.training)
    average = WeightAverage(model, config.averaging.decay) if config.averaging.decay else None
    return Setup(
        config, parts, model, batches, optimizer, make_scheduler(optimizer, config, batches.steps), average
    )


def make_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    if training.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        model.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )


def make_scheduler(optimizer: torch.optim.Optimizer, config: Config, steps: int) -> LRScheduler:
    """Learning rates over training; functions of the step alone."""
    factors = {
        "constant": lambda _: 1.0,
        "linear": lambda step: max(1 - step / steps, 0.02),
        "cosine": lambda step: max(0.5 + 0.5 * math.cos(math.pi * step / steps), 0.02),
        "halfway": lambda step: 1.0 if step < steps / 2 else 0.1,
    }
    return LambdaLR(optimizer, factors[config.training.schedule])


def losses_of(model: nn.Module, x: Tensor, y: Tensor, config: Config) -> Tensor:
    """One loss per record, or one per view of it."""
    views = config.augment.views
    if views == 1 and not config.augment.flip and not config.augment.shift:
        return F.cross_entropy(model(x), y, reduction="none")
    logits = model(make_views(x, config.augment))
    return F.cross_entropy(logits, y.repeat_interleave(views), reduction="none").view(len(x), views)


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Share of the test part classified right. The test part is public: it never enters training."""
    x, y = test.tensors
    was_training = model.training
    model.eval()
    right = sum(
        int((model(part).argmax(1) == label).sum())
        for part, label in zip(x.split(512), y.split(512), strict=True)
    )
    model.train(was_training)
    return right / max(len(y), 1)


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    data_dir: Path | None = None,
    reporter: Reporter | None = None,
) -> Outcome:
    """Train by the config and keep everything in `out`; an interrupt leaves a checkpoint and a true ledger."""
    folder, reporter = RunFolder(out), reporter or Silent()
    setup = set_up(config, data_dir=data_dir)
    mechanism = build_mechanism(config.method, config.privacy, setup.parts, setup.model, setup.batches)
    folder.resume(config) if resume else folder.start(config)
    curve: list[dict[str, float]] = []
    started = time.perf_counter()
    with qg.Privatizer(setup.model, mechanism, setup.batches, ledger=folder.ledger) as private:
        saved = folder.load_checkpoint() if resume else None
        if saved is not None:
            setup.load(saved)
            private.load_state_dict(saved["private"])
            curve, started = saved["curve"], started - saved["seconds"]
        reporter.start(config, private, setup)
        every = evaluation_interval(setup.batches.steps)

        def checkpoint() -> None:
            seconds = time.perf_counter() - started
            folder.save_checkpoint(
                {**setup.state(), "private": private.state_dict(), "curve": curve, "seconds": seconds}
            )

        try:
            for batch in setup.batches if private.steps_left else ():
                for x, y in batch.split(config.training.micro_batch):
                    private.backward(losses_of(setup.model, x, y, config))
                private.release()
                setup.optimizer.step()
                setup.scheduler.step()
                if setup.average is not None:
                    setup.average.update(setup.model)
                if private.step % every == 0:
                    spent = private.epsilon(config.privacy.delta, spent=True)
                    point = {
                        "step": private.step,
                        "epsilon": spent,
                        "accuracy": accuracy(setup.evaluated, setup.parts.test),
                    }
                    curve.append(point)
                    reporter.evaluated(point)
                reporter.stepped(private.step)
                if private.step % config.training.checkpoint_every == 0:
                    checkpoint()
                if not private.steps_left:  # replayed steps use the plan up before the last batch
                    break
        finally:
            checkpoint()
        outcome = Outcome(
            method=config.method.name,
            accuracy=accuracy(setup.evaluated, setup.parts.test),
            epsilon=private.epsilon(config.privacy.delta),
            delta=config.privacy.delta,
            seconds=time.perf_counter() - started,
            steps=private.step,
            covered=private.covered,
            noise_multiplier=mechanism.multiplier(0),
            curve=curve,
        )
    torch.save(setup.evaluated.state_dict(), out / "model.pt")
    folder.write_json("results.json", outcome.__dict__)
    folder.write_json("split.json", dict(setup.parts.record))
    reporter.finish(outcome)
    return outcome


def evaluation_interval(steps: int) -> int:
    """About twenty points on the curve: each asks the accountant and goes through the test part."""
    return max(1, steps // 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="changes", metavar="SECTION.KEY=VALUE")
    args = parser.parse_args()
    outcome = train(
        load_config(args.config, args.changes), args.out, resume=args.resume, data_dir=args.data_dir
    )
    print(f"{outcome.method}: accuracy {outcome.accuracy:.4f} at epsilon {outcome.epsilon:.4f}")


if __name__ == "__main__":
    main()

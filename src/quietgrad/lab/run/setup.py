"""From a config to the objects of a run, the user's own kinds: nothing here knows that training is private."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.optim.swa_utils import AveragedModel

import quietgrad as qg
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.models import build
from quietgrad.lab.run.averaging import weight_average
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.config_sections import TrainingConfig
from quietgrad.lab.run.task import load_task
from quietgrad.lab.run.warm_start import train_on_public
from quietgrad.schedules import steps_of


@dataclass
class Setup:
    """Data, model, batches and optimizer of a run.

    Args:
        lost_statistics: that were paid for before the training, and lost in a crash.
    """

    config: Config
    parts: Parts
    model: nn.Module
    batches: qg.PoissonBatches
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    average: AveragedModel | None
    lost_statistics: int = 0

    @property
    def evaluated(self) -> nn.Module:
        """The model that is released: the averaged one if there is one."""
        return self.model if self.average is None else self.average.module

    def update(self) -> None:
        """One step of the optimizer with the gradients that were released."""
        self.optimizer.step()
        self.scheduler.step()
        if self.average is not None:
            self.average.update_parameters(self.model)

    def state(self) -> dict[str, Any]:
        average = None if self.average is None else self.average.state_dict()
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "average": average,
        }

    def load(self, saved: dict[str, Any]) -> None:
        try:
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            self.scheduler.load_state_dict(saved["scheduler"])
            if self.average is not None:
                self.average.load_state_dict(saved["average"])
        except (RuntimeError, KeyError, TypeError, ValueError):
            raise LabError(
                "The checkpoint is of another model. Put back the one of this run, or start anew with another --out."
            ) from None


def set_up(
    config: Config, *, data_dir: Path | None = None, parts: Parts | None = None, device: str = "cpu"
) -> Setup:
    """Return all objects of a run. The seed fixes initial weights, never noise or batches.

    Args:
        config: what to run.
        data_dir: where data sets are looked for first.
        parts: a task in the place of the config's.
        device: where the model is trained; data go there batch by batch.
    """
    check_device(device)
    torch.manual_seed(config.training.seed)
    if parts is None:
        parts = load_task(config, data_dir=data_dir)
    model = build(config.model.name, parts.input_shape, parts.num_classes, **config.model.options)
    check_tokens(model, parts)
    freeze_layers(model, config.model.frozen)
    batches = make_batches(parts, config)
    if config.training.warm_start == "public":
        train_on_public(model, parts)
    model = model.to(device)
    batches.device = torch.device(device)
    optimizer = make_optimizer(model, config.training)
    return Setup(
        config=config,
        parts=parts,
        model=model,
        batches=batches,
        optimizer=optimizer,
        scheduler=make_scheduler(optimizer, config.training, batches.steps),
        average=weight_average(model, config.averaging.decay) if config.averaging.decay else None,
    )


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use here, before any data are read.

    Raises:
        LabError: there is no such device.
    """
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise LabError(
            f"--device {device} cannot be used: {reason} Install a torch for it, or use cpu."
        ) from None


def check_tokens(model: nn.Module, parts: Parts) -> None:
    """Refuse tokens that the model has no embedding for, before anything is released.

    Raises:
        LabError: some are outside its vocabulary.
    """
    embedding = next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)
    inputs = [part.tensors[0] for part in (parts.private, parts.public, parts.test) if len(part)]
    if embedding is None or any(x.is_floating_point() for x in inputs):
        return
    size = embedding.num_embeddings
    if any(int(x.min()) < 0 or int(x.max()) >= size for x in inputs):
        raise LabError(
            f"Some tokens are outside the model's vocabulary of {size}. Number them from 0 to {size - 1}, or set "
            "model.vocabulary."
        )


def make_batches(parts: Parts, config: Config) -> qg.PoissonBatches:
    """Poisson draws with `batch` records (or users) on average, `epochs` passes in expectation."""
    training, data = config.training, config.data
    units = len(parts.private) if parts.users is None else len(np.unique(parts.users))
    if training.batch > units:
        kind = "records" if parts.users is None else "users"
        raise LabError(
            f"training.batch = {training.batch:g} exceeds the {units} private {kind}. Lower it to {units} or less."
        )
    rate = training.batch / units
    users: dict[str, Any] = {}
    if parts.users is not None:
        users = {"unit": parts.users, "most_records": data.most_records, "pooled": data.pooled}
    steps = steps_of(training.epochs, rate)
    try:
        return qg.PoissonBatches(
            parts.private,
            rate=rate,
            steps=steps,
            groups=number_of_bands(config, rate, steps),
            at_most=training.at_most,
            once_an_epoch=training.once_an_epoch,
            **users,
        )
    except ValueError as error:
        raise LabError(f"training: {error}") from None


def number_of_bands(config: Config, rate: float, steps: int) -> int:
    """Of correlated noise; "best" asks which number leaves least noise in the sum of all updates.

    Raises:
        LabError: the best number is wanted, and no budget is given.
    """
    bands = config.training.bands
    if bands != "best":
        return int(bands)
    if config.privacy.epsilon is None:
        raise LabError(
            'training.bands = "best" needs privacy.epsilon. Give it, or the number of bands beside noise_multiplier.'
        )
    choice = qg.choose_bands(
        rate=rate,
        steps=steps,
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        momentum=momentum_of(config.training),
    )
    return choice.bands


def momentum_of(training: TrainingConfig) -> float:
    """Return what adds up in the weights over steps; Adam's averages do not add up."""
    return training.momentum if training.optimizer == "sgd" else 0.0


def make_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    if training.optimizer != "sgd":
        kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
        return kind(model.parameters(), lr=training.lr, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        model.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
    )


def make_scheduler(optimizer: torch.optim.Optimizer, training: TrainingConfig, steps: int) -> LRScheduler:
    """Learning rates over training; functions of the step alone."""
    factors = {
        "constant": lambda _: 1.0,
        "linear": lambda step: max(1 - step / steps, 0.02),
        "cosine": lambda step: max(0.5 + 0.5 * math.cos(math.pi * step / steps), 0.02),
        "halfway": lambda step: 1.0 if step < steps / 2 else 0.1,
        "drops": lambda step: training.drop_factor ** sum(step >= part * steps for part in training.drops),
    }
    factor, warm = factors[training.schedule], training.warmup * steps
    return LambdaLR(optimizer, lambda step: factor(step) * (min(1.0, (step + 1) / warm) if warm else 1.0))


def freeze_layers(model: nn.Module, patterns: Sequence[str]) -> None:
    """Parameters that match are not trained; a pattern "!head.*" freezes all others."""
    names = [name for name, _ in model.named_parameters()]
    frozen: set[str] = set()
    for pattern in patterns:
        matching = {name for name in names if fnmatchcase(name, pattern.removeprefix("!"))}
        if not matching:
            raise LabError(
                f"model.frozen: {pattern!r} names no parameter. There are: {', '.join(names[:6])}, …"
            )
        frozen |= set(names) - matching if pattern.startswith("!") else matching
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)

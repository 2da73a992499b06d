"""One training step of each contender: plain SGD, quietgrad, every mode of Opacus."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg
from benchmarks.models import CLASSES, Setting

Step = Callable[[], object]
MANY = 100_000
"""Steps that a benchmark never reaches."""
OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")


def data(setting: Setting, batch: int | None = None) -> tuple[Tensor, Tensor]:
    """A fixed batch."""
    n = batch or setting.batch
    return setting.inputs(n), torch.randint(0, CLASSES, (n,), generator=torch.Generator().manual_seed(1))


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def plain(setting: Setting, batch: int | None = None) -> Step:
    """An ordinary SGD step on a batch that is gathered by row numbers, as the private one's is."""
    model, (x, y) = setting.model(), data(setting, batch)
    optimizer = torch.optim.SGD(trained(model), lr=1e-3)

    def step() -> None:
        chosen = torch.randperm(len(x))
        rows, labels = x[chosen], y[chosen]
        optimizer.zero_grad()
        setting.losses(model(rows), rows, labels).mean().backward()
        optimizer.step()

    return step


def quietgrad(
    setting: Setting, batch: int | None = None, method: qg.Mechanism | None = None, **options: Any
) -> Step:
    """The whole private step: capture, clip, default noise source, ledger, SGD. Rate 1 draws every row each time."""
    mechanism = (method or qg.methods.dp_sgd(clip=1.0)).with_noise(1.0)
    model, (x, y) = setting.model(), data(setting, batch)
    optimizer = torch.optim.SGD(trained(model), lr=1e-3)
    batches = qg.PoissonBatches(TensorDataset(x, y), rate=1.0, steps=MANY)
    private = qg.Privatizer(model, mechanism, batches, **options)
    drawn = iter(batches)

    def step() -> None:
        for rows in next(drawn).split(len(x)):
            private.backward(setting.losses(model(rows[0]), *rows))
        private.release()
        optimizer.step()

    return step


def opacus(setting: Setting, mode: str) -> Step:
    """Opacus at the same batch, its fastest settings for the mode."""
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore")
    model, (x, y) = setting.model(), data(setting)
    optimizer = torch.optim.SGD(trained(model), lr=1e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
    parts = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **({"criterion": torch.nn.CrossEntropyLoss(reduction="mean")} if mode == "ghost" else {}),
    )
    private, private_optimizer = parts[0], parts[1]

    def loss() -> Any:
        if mode == "ghost":
            return parts[2](private(x), y)
        return setting.losses(private(x), x, y).mean()

    def step() -> None:
        private_optimizer.zero_grad()
        loss().backward()
        private_optimizer.step()

    return step

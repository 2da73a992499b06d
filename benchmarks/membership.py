"""Membership inference on an overfitted model and on the same model trained privately, with losses and with shadows.

    python -m benchmarks.membership [--only NAME ...] [--json FILE]

A perceptron (102k parameters) on the embedded Fashion-MNIST: 4,500 records to train on, as many that were not trained
on, the rest for shadow models.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting.planning import plan
from quietgrad.audit import rmia, threshold_attack
from quietgrad.audit.shadows import confidences, losses
from quietgrad.lab.data import embedded
from quietgrad.lab.models import build
from quietgrad.public_losses import random_label_losses

EPSILON, DELTA = 8.0, 1e-5
MEMBERS, SHADOWS = 4_500, 4
BATCH, EPOCHS = 150, 12
OVERFIT_EPOCHS = 60


class Split:
    """Members, others and a pool for shadow models and the population, all disjoint."""

    def __init__(self) -> None:
        parts = embedded()
        x, y = parts.private.tensors
        order = torch.from_numpy(np.random.default_rng(0).permutation(len(y)))
        self.members, self.others, self.pool = (
            TensorDataset(x[rows], y[rows]) for rows in order.split([MEMBERS, MEMBERS, len(y) - 2 * MEMBERS])
        )
        self.shape, self.classes, self.public = parts.input_shape, parts.num_classes, parts.public_inputs

    def model(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build("mlp", self.shape, self.classes, hidden=(128,))


def overfit(split: Split, data: TensorDataset, seed: int, epochs: int = OVERFIT_EPOCHS) -> nn.Module:
    """Plain training until the model knows its records by heart."""
    model = split.model(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = data.tensors
    rng = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.randperm(len(y), generator=rng).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return model


def private(split: Split, mechanism: qg.Mechanism, lr: float) -> tuple[nn.Module, tuple[Any, ...]]:
    """The same model and records at ε = 8."""
    steps = EPOCHS * MEMBERS // BATCH
    batches = qg.PoissonBatches(split.members, rate=BATCH / MEMBERS, steps=steps)
    calibrated = qg.calibrate(mechanism, batches, epsilon=EPSILON, delta=DELTA)
    model = split.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with qg.Privatizer(model, calibrated, batches) as run:
        for batch in batches:
            for x, y in batch.split(256):
                run.backward(F.cross_entropy(model(x), y, reduction="none"))
            run.release()
            optimizer.step()
    return model, plan(calibrated, batches.rate, steps)


def attack(split: Split, model: nn.Module, phases: Any, shadows: list[nn.Module]) -> list[dict[str, Any]]:
    """Success of the loss threshold and of RMIA."""
    inside, outside = split.members.tensors, split.others.tensors
    by_loss = threshold_attack(-losses(model, *inside), -losses(model, *outside), phases=phases)
    # A third of the others is the population that RMIA compares with; it is not attacked.
    cut = len(outside[1]) // 3
    users = [tensor[:cut] for tensor in outside]
    population = confidences(model, *users), np.stack([confidences(s, *users) for s in shadows])

    def scores(data: Any) -> Any:
        seen = np.stack([confidences(shadow, *data) for shadow in shadows])
        return rmia(confidences(model, *data), seen, *population)

    by_shadows = threshold_attack(
        scores(inside),
        scores([tensor[cut:] for tensor in outside]),
        phases=phases,
        name=f"RMIA, {SHADOWS} shadows",
    )
    return [by_loss.as_dict(), by_shadows.as_dict()]


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    x, y = data.tensors
    with torch.no_grad():
        return float((torch.cat([model(part).argmax(1) for part in x.split(512)]) == y).float().mean())


def contenders(split: Split) -> dict[str, Callable[[], tuple[nn.Module, Any]]]:
    """Everyone's way to a trained model and its plan (None: not private)."""
    public = random_label_losses(split.public, split.classes)
    gep = qg.methods.gep(public, rank=60, clip=1.0, residual_clip=0.5, refresh_every=30)
    return {
        "non-private": lambda: (overfit(split, split.members, 0), None),
        "dp_sgd": lambda: private(split, qg.methods.dp_sgd(clip=1.0), 2.0),
        "gep": lambda: private(split, gep, 2.0),
        "rgp": lambda: private(split, qg.methods.rgp(rank=8, clip=1.0, warmup_steps=30), 2.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    split = Split()
    half = len(split.pool) // 2
    shadows = [
        overfit(
            split,
            TensorDataset(*split.pool[np.random.default_rng(s).permutation(len(split.pool))[:half]]),
            s,
            30,
        )
        for s in range(1, SHADOWS + 1)
    ]
    rows = []
    chosen = {name: train for name, train in contenders(split).items() if not args.only or name in args.only}
    for name, train in chosen.items():
        started = time.perf_counter()
        model, phases = train()
        for result in attack(split, model, phases, shadows):
            row = {
                "method": name,
                "train_accuracy": accuracy(model, split.members),
                "other_accuracy": accuracy(model, split.others),
                "seconds": time.perf_counter() - started,
                **result,
            }
            rows.append(row)
            low, high = row["interval"]
            bound = "–" if row["bound"] is None else f"{row['bound']:.1%}"
            print(
                f"{name:12} {row['attack']:16} success {row['success']:.1%} [{low:.1%}, {high:.1%}] of "
                f"{row['evaluated']} points, bound {bound}; accuracy on members {row['train_accuracy']:.1%}, on others "
                f"{row['other_accuracy']:.1%} ({row['verdict']})",
                flush=True,
            )
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""`make demo`: DP-SGD on the embedded Fashion-MNIST subset at ε = 2, from scratch, in a few minutes."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.averaging import WeightAverage
from quietgrad.lab.data import embedded
from quietgrad.lab.models import build

EPSILON, DELTA = 2.0, 1e-5
EPOCHS, BATCH = 15, 250
LEARNING_RATE, CLIP, DECAY = 1.0, 1.0, 0.99


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Share of test images classified right."""
    x, y = test.tensors
    predicted = torch.cat([model(part).argmax(1) for part in x.split(1000)])
    return float((predicted == y).float().mean())


def train(seed: int, progress: Progress) -> dict[str, Any]:
    """One private run; the seed fixes the initial weights only, noise and batches come from OS entropy."""
    torch.manual_seed(seed)
    parts = embedded()
    rate = BATCH / len(parts.private)
    batches = qg.PoissonBatches(parts.private, rate=rate, steps=round(EPOCHS / rate))
    mechanism = qg.calibrate(qg.methods.dp_sgd(clip=CLIP), batches, epsilon=EPSILON, delta=DELTA)
    model = build("tanh_cnn", parts.input_shape, parts.num_classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    average = WeightAverage(model, DECAY)
    task = progress.add_task("dp_sgd", total=batches.steps, epsilon=0.0)
    started = time.perf_counter()
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for x, y in batch.split(512):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
            average.update(model)
            progress.update(task, advance=1)
            if private.step % 48 == 0:
                progress.update(task, epsilon=private.epsilon(DELTA, spent=True))
        return {
            "method": "dp_sgd",
            "accuracy": accuracy(average.model, parts.test),
            "epsilon": private.epsilon(DELTA),
            "seconds": time.perf_counter() - started,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    args = parser.parse_args()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("ε {task.fields[epsilon]:.2f}"))
    with Progress(*columns, TimeRemainingColumn()) as progress:
        result = train(args.seed, progress)
    args.out.mkdir(parents=True, exist_ok=True)
    summary = {"epsilon": EPSILON, "delta": DELTA, "results": [result]}
    (args.out / "results.json").write_text(json.dumps(summary, indent=2) + "\n")
    Console().print(
        f"DP-SGD: test accuracy {result['accuracy']:.1%} at ε = {result['epsilon']:.3f}, δ = {DELTA:g} "
        f"({result['seconds']:.0f} s). Written to {args.out / 'results.json'}."
    )


if __name__ == "__main__":
    main()

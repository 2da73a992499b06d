"""A private linear head on the features of a frozen encoder: MiniLM on SST-2, an ImageNet network on CIFAR-10."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.fine_tuning.activations import cached_means
from benchmarks.fine_tuning.results import percent
from benchmarks.fine_tuning.sst2 import sentences
from quietgrad._linear_probe.recipe import all_at_once, fit_rescaling, probe_program, train_head, zero_head
from quietgrad._linear_probe.rule import settings
from quietgrad.features.encoders import unit
from quietgrad.integrations.pretrained import image_encoder
from quietgrad.lab.data import load

DELTA = 1e-5
CHUNK = 2500
TESTS = {"sst2": {"accuracy": "dev", "held_out": "held_out"}, "cifar10": {"accuracy": "test"}}
"""Scores of a head, and the part they are of."""
CLASSES = {"sst2": 2, "cifar10": 10}
SIDE = 96
"""Pixels that CIFAR-10's 32 are enlarged to."""

Head: TypeAlias = Callable[[Tensor], Tensor]
"""From features to logits."""


def features(cache: Path, seconds: float) -> None:
    """Encode the images that are not in the cache yet, for about so long."""
    begun = time.perf_counter()
    data, encoder = load("cifar10", as_stored=True), image_encoder("efficientnet_lite0", SIDE)
    order = torch.randperm(len(data.private), generator=torch.Generator().manual_seed(0))
    images, classes = data.private.tensors
    for part, (inputs, labels) in {
        "test": data.test.tensors,
        "train": (images[order], classes[order]),
    }.items():
        for start in range(0, len(inputs), CHUNK):
            file = cache / f"cifar10_{part}_{start}.npz"
            if not file.exists() and time.perf_counter() - begun < seconds:
                rows = inputs[start : start + CHUNK]
                with torch.no_grad():
                    encoded = torch.cat([encoder(few) for few in rows.split(16)])
                np.savez(file, x=encoded.numpy().astype(np.float16), y=labels[start : start + CHUNK].numpy())
                print(file, flush=True)


def cached(
    task: str, part: str, cache: Path, most: int | None = None
) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
    """What is in the cache, in the order of the chunks; SST-2's sentences in a random order."""
    if task == "sst2":
        rows, labels = cached_means(part, cache), getattr(sentences(), part).tensors[1]
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:most]
        return rows[order], labels[order]
    files = sorted(cache.glob(f"{task}_{part}_*.npz"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    chunks = [np.load(file) for file in files]
    if not chunks:
        raise SystemExit(f"No features of {task} in {cache}. Run `features` first.")
    images = np.concatenate([chunk["x"] for chunk in chunks]).astype(np.float32)
    classes = np.concatenate([chunk["y"] for chunk in chunks])
    return torch.from_numpy(images[:most]), torch.from_numpy(classes[:most])


def head(task: str, cache: Path, epsilon: float, most: int) -> dict[str, Any]:
    """The private linear probe on cached features."""
    rows, labels = cached(task, "train", cache, most)
    logits, steps = private_head(rows, labels, CLASSES[task], epsilon)
    return {"records": len(rows), "steps": steps} | _judged(task, cache, logits)


def private_head(
    rows: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], classes: int, epsilon: float
) -> tuple[Head, int]:
    """The private linear probe without rescaling: released mean, unit length, linear head on full batches.

    Returns the head and the number of its steps.
    """
    rows = unit(rows)
    rule = settings(records=len(rows), classes=classes, epsilon=epsilon, delta=DELTA)
    program = probe_program("mean", rows.shape[1:], rule)
    batches = all_at_once(TensorDataset(rows, labels), rule)
    program = qg.calibrate(program, batches, epsilon=epsilon, delta=DELTA)
    statistics = qg.Statistics(program, batches)
    rescale = fit_rescaling("mean", rule, statistics=statistics, rows=rows)
    batches = all_at_once(TensorDataset(rescale(rows), labels), rule)
    linear = zero_head(rescale.width, classes)
    train_head(linear, program, batches, rule, statistics.ledger)
    return lambda test: linear(rescale(unit(test))), rule.steps


def head_without_noise(task: str, cache: Path, most: int) -> dict[str, Any]:
    """The same head on cached features, no privacy."""
    rows, labels = cached(task, "train", cache, most)
    return {"records": len(rows)} | _judged(task, cache, plain_head(rows, labels, CLASSES[task]))


def plain_head(rows: Float[Tensor, "n d"], labels: Int64[Tensor, " n"], classes: int) -> Head:
    """The same head by L-BFGS, a little weight decay, no privacy."""
    mean = unit(rows).mean(0)
    rows = unit(unit(rows) - mean)
    linear = nn.Linear(rows.shape[1], classes)
    optimizer = torch.optim.LBFGS(linear.parameters(), lr=1.0, max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(linear(rows), labels) + 1e-6 * linear.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return lambda test: linear(unit(unit(test) - mean))


def _judged(task: str, cache: Path, logits: Head) -> dict[str, float]:
    """Accuracies of a head."""
    parts = {name: cached(task, part, cache) for name, part in TESTS[task].items()}
    return {name: percent(logits(test), truth) for name, (test, truth) in parts.items()}

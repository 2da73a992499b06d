"""A private linear head on the features of a frozen encoder: MiniLM on SST-2, an ImageNet network on CIFAR-10."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.fine_tuning.results import percent
from quietgrad.features.encoders import unit
from quietgrad.integrations.pretrained import image_encoder
from quietgrad.integrations.text_folder import FolderTokens, TextEncoder
from quietgrad.lab.data import load
from quietgrad.quiet.recipe import all_at_once, quiet_program, rescaled_by_mean, train_head, zero_head
from quietgrad.quiet.rule import settings

DELTA = 1e-5
CHUNK = {"sst2": 4000, "cifar10": 2500}
TOKENS = 64
SIDE = 96
"""Pixels that CIFAR-10's 32 are enlarged to."""


def features(task: str, cache: Path, seconds: float) -> None:
    """Encode what is not in the cache yet, for about so long."""
    begun = time.perf_counter()
    encoder, parts = _encoder_and_parts(task)
    for part, (inputs, labels) in parts.items():
        for start in range(0, len(inputs), CHUNK[task]):
            file = cache / f"{task}_{part}_{start}.npz"
            if not file.exists() and time.perf_counter() - begun < seconds:
                rows = inputs[start : start + CHUNK[task]]
                with torch.no_grad():
                    encoded = torch.cat([encoder(few) for few in rows.split(16)])
                np.savez(
                    file, x=encoded.numpy().astype(np.float16), y=labels[start : start + CHUNK[task]].numpy()
                )
                print(file, flush=True)


def _encoder_and_parts(task: str) -> tuple[nn.Module, dict[str, tuple[Tensor, Tensor]]]:
    encoder: nn.Module
    if task == "sst2":
        data, encoder = load("sst2", words=FolderTokens("minilm", TOKENS)), TextEncoder("minilm")
    else:
        data, encoder = load("cifar10", as_stored=True), image_encoder("efficientnet_lite0", SIDE)
    order = torch.randperm(len(data.private), generator=torch.Generator().manual_seed(0))
    private = tuple(t[order] for t in data.private.tensors)
    return encoder, {"test": data.test.tensors, "train": private}  # type: ignore[dict-item]


def cached(
    task: str, part: str, cache: Path, most: int | None = None
) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
    """What is in the cache, in the order of the chunks."""
    files = sorted(cache.glob(f"{task}_{part}_*.npz"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    chunks = [np.load(file) for file in files]
    if not chunks:
        raise SystemExit(f"No features of {task} in {cache}. Run `features {task}` first.")
    rows = np.concatenate([chunk["x"] for chunk in chunks]).astype(np.float32)
    labels = np.concatenate([chunk["y"] for chunk in chunks])
    return torch.from_numpy(rows[:most]), torch.from_numpy(labels[:most])


def head(task: str, cache: Path, epsilon: float, most: int) -> dict[str, Any]:
    """The quiet recipe without rescaling: released mean, unit length, linear head on full batches."""
    (rows, labels), (test, truth) = cached(task, "train", cache, most), cached(task, "test", cache)
    rows, classes = unit(rows), int(truth.max()) + 1
    rule = settings(records=len(rows), classes=classes, epsilon=epsilon, delta=DELTA)
    program = quiet_program("mean", rows.shape[1:], rule)
    batches = all_at_once(TensorDataset(rows, labels), rule)
    program = qg.calibrate(program, batches, epsilon=epsilon, delta=DELTA)
    statistics = qg.Statistics(program, batches)
    rescale = rescaled_by_mean(statistics, rows)
    batches = all_at_once(TensorDataset(rescale(rows), labels), rule)
    linear = zero_head(rescale.width, classes)
    train_head(linear, program, batches, rule, statistics.ledger)
    return {
        "records": len(rows),
        "accuracy": percent(linear(rescale(unit(test))), truth),
        "steps": rule.steps,
    }


def head_without_noise(task: str, cache: Path, most: int) -> dict[str, Any]:
    """The same head on the same features by L-BFGS, a little weight decay, no privacy."""
    (rows, labels), (test, truth) = cached(task, "train", cache, most), cached(task, "test", cache)
    mean = unit(rows).mean(0)
    rows, test = unit(unit(rows) - mean), unit(unit(test) - mean)
    linear = nn.Linear(rows.shape[1], int(truth.max()) + 1)
    optimizer = torch.optim.LBFGS(linear.parameters(), lr=1.0, max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(linear(rows), labels) + 1e-6 * linear.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return {"records": len(rows), "accuracy": percent(linear(test), truth)}

"""A private linear head on SST-2 read by a prompted language model, by MiniLM, and by both side by side.

All 67,349 sentences train, the 872 of dev are judged. Encoders are frozen; the prompt and its layer are stated.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.data import TensorDataset

from benchmarks.fine_tuning.heads import plain_head, private_head
from benchmarks.fine_tuning.results import percent
from quietgrad.features.encoders import unit
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.config_sections import DataConfig
from quietgrad.lab.run.task import load_task

PROMPT = "Review: {}\nSentiment:"
CLASSES = 2


def encoded(encoders: str, cache: Path) -> tuple[TensorDataset, TensorDataset]:
    """Training and dev sentences; encoders are joined by `+`, their rows side by side, each of unit length."""
    single = [_encoded(name, cache) for name in encoders.split("+")]
    joined = [
        TensorDataset(_side_by_side([part.tensors[0] for part in parts]), parts[0].tensors[1])
        for parts in zip(*single, strict=True)
    ]
    train, dev = joined
    return train, dev


def _side_by_side(rows: list[Tensor]) -> Float[Tensor, "n d"]:
    return torch.cat([unit(each) for each in rows], 1)


def _encoded(name: str, cache: Path) -> tuple[TensorDataset, TensorDataset]:
    """Read one encoder's features from the cache, or make them."""
    file = cache / f"sst2_{hashlib.sha256(name.encode()).hexdigest()[:12]}.pt"
    if not file.exists():
        prompt = {"prompt": PROMPT, "precision": "bfloat16"} if name.startswith("prompt:") else {}
        parts = load_task(Config(data=DataConfig(name="sst2", features=name, **prompt)))
        cache.mkdir(parents=True, exist_ok=True)
        torch.save((parts.private.tensors, parts.test.tensors), file)
    train, dev = torch.load(file, weights_only=True)
    return TensorDataset(*train), TensorDataset(*dev)


def judged(encoders: str, cache: Path, epsilon: float) -> dict[str, Any]:
    """Accuracy on dev of one head; ε = 0 is for no privacy."""
    train, dev = encoded(encoders, cache)
    rows, labels = train.tensors
    if epsilon:
        logits, steps = private_head(rows, labels, CLASSES, epsilon)
    else:
        logits, steps = plain_head(rows, labels, CLASSES), 0
    return {"records": len(rows), "steps": steps, "accuracy": percent(logits(dev.tensors[0]), dev.tensors[1])}

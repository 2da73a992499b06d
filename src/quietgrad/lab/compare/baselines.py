"""What the methods are measured against: public data alone, and training without privacy."""

from __future__ import annotations

import statistics
from pathlib import Path

import torch

from quietgrad.lab.compare.comparison import PUBLIC_ONLY, ComparisonRow
from quietgrad.lab.data import Parts
from quietgrad.lab.data.errors import NoPublicLabelsError
from quietgrad.lab.models import build
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.metrics import accuracy
from quietgrad.lab.run.presets import recipe
from quietgrad.lab.run.task import load_task
from quietgrad.lab.run.warm_start import train_on_public


def non_private(base: Config) -> Config:
    """Ordinary SGD with momentum, neither clipped nor noised: what privacy is paid from."""
    return parse_config(
        base.plain()
        | {
            "method": {"name": "dp_sgd", "clip": 1e9},
            "privacy": {"noise_multiplier": 0.0, "delta": base.privacy.delta},
            "training": recipe(base.training, {"lr": 0.05, "momentum": 0.9}),
        }
    )


def public_only(base: Config, seeds: int, data_dir: Path | None) -> list[ComparisonRow]:
    """Ordinary training on the labelled public part alone, ε = 0; no row where there is no labelled public data."""
    labelled = parse_config(base.plain() | {"data": base.data.model_dump() | {"public_labels": True}})
    try:
        parts = load_task(labelled, data_dir=data_dir)
    except NoPublicLabelsError:
        return []
    if len(parts.public) == 0:
        return []
    accuracies = [_public_accuracy(base, parts, seed) for seed in range(seeds)]
    std = statistics.stdev(accuracies) if seeds > 1 else 0.0
    name = f"{PUBLIC_ONLY} ({len(parts.public)} labelled images)"
    return [ComparisonRow(name, 0.0, statistics.mean(accuracies), std, 0.0, 0.0, 0.0, None, ())]


def _public_accuracy(base: Config, parts: Parts, seed: int) -> float:
    torch.manual_seed(seed)
    model = build(base.model.name, parts.input_shape, parts.num_classes, **base.model.options)
    train_on_public(model, parts)
    return accuracy(model, parts.test)

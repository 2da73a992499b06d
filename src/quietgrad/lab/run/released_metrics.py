"""Accuracy on the private rows themselves, as a release within ε: for runs without test rows.

Counts of (label, answer) are released once, after training, with noise of a stated part of the budget. A record is in
one count, and a user's records are averaged first, so the counts have sensitivity one. Everything else follows from
them. They are of the rows that the model was trained on, so they flatter it a little.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

import quietgrad as qg
from quietgrad._program.statistics import Counts
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.metrics import FEW_CLASSES, Metrics, NumberMetrics, logits_of
from quietgrad.lab.run.setup import Setup

NAME = "accuracy"
ENTRIES = 5
"""Of a record's row where numbers are predicted: whether it has one, |e|/2, (e/2)², t and t², each at most one."""
STANDS_OUT = 4.0
"""Stds above which a count is taken as there."""


@dataclass(frozen=True, kw_only=True)
class ReleasedMetrics(Metrics):
    """Of a model on the private rows, from released counts.

    Args:
        noise: standard deviation of the noise in the accuracy.
    """

    noise: float


@dataclass(frozen=True, kw_only=True)
class ReleasedNumberMetrics(NumberMetrics):
    """The same of a model that predicts a number.

    Args:
        noise: standard deviation of the noise in the mean absolute error.
    """

    noise: float


def plan_accuracy(config: Config, parts: Parts) -> dict[str, qg.StatisticRelease]:
    """Return what is released after training if the config asks for it.

    Raises:
        LabError: there are many classes, whose counts would be noise.
    """
    share = config.privacy.accuracy
    if share is None:
        return {}
    if parts.num_classes > FEW_CLASSES:
        raise LabError(
            f"privacy.accuracy counts each pair of {parts.num_classes} classes, and most would be noise. Leave it out, "
            f"or predict at most {FEW_CLASSES} classes."
        )
    counts: qg.Statistic = Counts(parts.num_classes**2)
    statistic = qg.Mean(length=math.sqrt(ENTRIES)) if parts.target is not None else counts
    return {NAME: qg.StatisticRelease(statistic=statistic, share=share)}


def release_metrics(setup: Setup, statistics: qg.Statistics) -> dict[str, Any]:
    """Release the counts and say what they mean; empty if they were paid for and lost in a crash."""
    inputs, labels = setup.parts.private.tensors
    said = logits_of(setup.evaluated, inputs)
    values = _pairs(said, labels) if setup.parts.target is None else _errors(said[:, 0], labels)
    released = statistics.release(NAME, values)
    (found,) = (block.double() for block in released.blocks.values())
    if not bool(found.any()):
        return {}
    rows = setup.parts.units
    if setup.parts.target is None:
        shares = found.view(setup.parts.num_classes, -1)
        return dataclasses.asdict(class_metrics(shares, released.std, rows))
    return dataclasses.asdict(error_metrics(found, released.std, rows, setup.parts.target))


def class_metrics(shares: Float[Tensor, "k k"], std: float, rows: int) -> ReleasedMetrics:
    """From noisy shares of (label, answer) among all rows; post-processing."""
    whole = float(shares.sum().clamp(STANDS_OUT * std, 1.0))
    labels, right = shares.sum(1).clamp_min(0.0), shares.diagonal()
    there = labels > STANDS_OUT * std * math.sqrt(len(labels))
    recalls = (right / labels.clamp_min(1e-12))[there].clamp(0.0, 1.0)
    return ReleasedMetrics(
        rows=rows,
        accuracy=min(max(float(right.sum()) / whole, 0.0), 1.0),
        majority=min(float(labels.max()) / whole, 1.0),
        balanced_accuracy=float(recalls.mean()) if len(recalls) else math.nan,
        auc=None,
        predicted=max(1, int((shares.sum(0) > STANDS_OUT * std * math.sqrt(len(labels))).sum())),
        noise=std * math.sqrt(len(labels)) / whole,
    )


def error_metrics(
    sums: Float[Tensor, " 5"], std: float, rows: int, target: tuple[float, float]
) -> ReleasedNumberMetrics:
    """From noisy means of a record's row (`ENTRIES`); post-processing."""
    whole = float(sums[0].clamp(STANDS_OUT * std, 1.0))
    absolute, squared, mean, square = (float(value) / whole for value in sums[1:])
    variance = square - mean**2
    unit = (target[1] - target[0]) / 2
    return ReleasedNumberMetrics(
        rows=rows,
        r2=1 - max(4 * squared, 0.0) / variance if variance > STANDS_OUT * std else None,
        mae=max(2 * absolute * unit, 0.0),
        mean_mae=None,
        noise=2 * std / whole * unit,
    )


def _pairs(logits: Float[Tensor, "n k"], labels: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Return the number of each record's (label, answer); −1, which counts nowhere, without a label."""
    return torch.where(labels >= 0, labels * logits.shape[1] + logits.argmax(1), -1)


def _errors(said: Float[Tensor, " n"], truth: Float[Tensor, " n"]) -> Float[Tensor, "n 5"]:
    known = truth.isfinite().float()
    truth = truth.nan_to_num(0.0)
    half = (said.clamp(-1.0, 1.0) - truth) / 2
    return (
        torch.stack([torch.ones_like(truth), half.abs(), half.square(), truth, truth.square()], 1)
        * known[:, None]
    )

"""What a model is worth on the test part, beside what no model at all would reach."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int64
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad.tables import IGNORED

FEW_CLASSES = 20
"""Up to here areas under the curve are a number that readers expect."""
ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Of a model on labelled test rows.

    Args:
        rows: how many there are.
        accuracy: share of rows that are classified right.
        majority: share of the largest class, which whoever always says it gets right.
        balanced_accuracy: mean over the classes of the share that is found; 1 / classes for a constant answer.
        auc: area under the ROC curve, the mean over the classes against all others if there are more than two; ½ for
            guessing, None for many classes.
        predicted: how many different classes the model says.
    """

    rows: int
    accuracy: float
    majority: float
    balanced_accuracy: float
    auc: float | None
    predicted: int

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Share of the test part classified right, NaN if there is none."""
    metrics = measure(model, test)
    return math.nan if metrics is None else metrics.accuracy


def measure(model: nn.Module, test: TensorDataset) -> Metrics | None:
    """Measure on the test rows that have a label; None if there are none."""
    labels = test.tensors[1]
    labelled = labels != IGNORED
    if not bool(labelled.any()):
        return None
    return metrics_of(logits_of(model, test.tensors[0][labelled]), labels[labelled])


@torch.no_grad()
def logits_of(model: nn.Module, inputs: Tensor) -> Float[Tensor, "n k"]:
    """Run the model in evaluation mode, some rows at a time."""
    was_training = model.training
    model.eval()
    first = next(model.parameters(), None)
    device = inputs.device if first is None else first.device
    found = torch.cat([model(part.to(device)).cpu() for part in inputs.split(ROWS)])
    model.train(was_training)
    return found


def metrics_of(logits: Float[Tensor, "n k"], labels: Int64[Tensor, " n"]) -> Metrics:
    """All metrics of at least one row."""
    answers = logits.argmax(1)
    counts = labels.bincount(minlength=logits.shape[1])
    found = labels[answers == labels].bincount(minlength=logits.shape[1])
    there = counts > 0
    return Metrics(
        rows=len(labels),
        accuracy=int(found.sum()) / len(labels),
        majority=int(counts.max()) / len(labels),
        balanced_accuracy=float((found[there] / counts[there]).double().mean()),
        auc=_auc(logits, labels) if logits.shape[1] <= FEW_CLASSES else None,
        predicted=len(answers.unique()),
    )


def _auc(logits: Float[Tensor, "n k"], labels: Int64[Tensor, " n"]) -> float | None:
    if logits.shape[1] == 2:
        return area_under_curve(logits[:, 1] - logits[:, 0], labels == 1)
    scores = logits.log_softmax(1)
    areas = [area_under_curve(scores[:, k], labels == k) for k in range(logits.shape[1])]
    known = [area for area in areas if area is not None]
    return sum(known) / len(known) if known else None


def area_under_curve(scores: Float[Tensor, " n"], positive: Tensor) -> float | None:
    """P(a positive row scores above a negative one), ties half; None if one kind is missing."""
    positives = int(positive.sum())
    pairs = positives * (len(scores) - positives)
    if pairs == 0:
        return None
    ranks = torch.from_numpy(rankdata(scores.double().numpy()))
    return (float(ranks[positive].sum()) - positives * (positives + 1) / 2) / pairs


def metrics_text(found: Mapping[str, Any]) -> str:
    """The metrics of `results.json` in words."""
    if not found:
        return "no test data, so nothing was measured"
    said = f"{found['accuracy']:.2%} of the test data right ({found['majority']:.2%} are of one class)"
    area = "" if found["auc"] is None else f", AUC {found['auc']:.3f}"
    return f"{said}, balanced accuracy {found['balanced_accuracy']:.1%}{area}"


def one_class_warning(found: Mapping[str, Any]) -> str | None:
    """Return a warning if the model always gives the same answer, else None."""
    if not found or found["predicted"] != 1:
        return None
    return (
        "The model gives every test row the same class: its accuracy is the share of that class. Look at the AUC, "
        "predict probabilities with a threshold of your own, or give more records or a larger ε."
    )

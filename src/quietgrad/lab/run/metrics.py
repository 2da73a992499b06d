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
WORTH_RANKING = 0.55
"""AUC from which on a threshold is worth trying."""
ROWS = 512


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Of a model on labelled test rows.

    Args:
        rows: how many there are.
        accuracy: share of rows that are classified right.
        majority: share of the largest class, which whoever always says it gets right.
        balanced_accuracy: mean over the classes of the share that is found; 1 / classes for a constant answer, and
            the accuracy where all rows are of one class.
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


@dataclass(frozen=True, kw_only=True)
class NumberMetrics:
    """Of a model that predicts a number, on test rows that have one.

    Args:
        rows: how many there are.
        r2: share of the variance that is explained; 0 for always saying their mean, None if all of them are equal.
        mae: mean absolute error, in the unit of the label.
        mean_mae: that of always saying their mean; None where it is not known.
    """

    rows: int
    r2: float | None
    mae: float
    mean_mae: float | None

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """Share of the test part classified right, NaN if there is none."""
    return curve_values(measure(model, test))["accuracy"]


def curve_values(found: Metrics | NumberMetrics | None) -> dict[str, float]:
    """Return what a point of the curve shows: the accuracy, NaN where there is none; R² of numbers beside it."""
    if isinstance(found, NumberMetrics):
        return {"accuracy": math.nan, "r2": math.nan if found.r2 is None else found.r2}
    return {"accuracy": math.nan if found is None else found.accuracy}


def measure(
    model: nn.Module, test: TensorDataset, target: tuple[float, float] | None = None
) -> Metrics | NumberMetrics | None:
    """Measure on the test rows that have a label; None if there are none.

    Args:
        target: bounds of the number that is predicted; labels and the model's answers are scaled to [−1, 1].
    """
    inputs, labels = test.tensors[:2]
    labelled = labels != IGNORED if target is None else labels.isfinite()
    if not bool(labelled.any()):
        return None
    said = logits_of(model, inputs[labelled])
    if target is None:
        return metrics_of(said, labels[labelled])
    return number_metrics(said[:, 0], labels[labelled], target)


def number_metrics(
    said: Float[Tensor, " n"], truth: Float[Tensor, " n"], target: tuple[float, float]
) -> NumberMetrics:
    """Return all metrics of at least one row."""
    unit = (target[1] - target[0]) / 2
    truth = truth.double() * unit
    errors = said.double().clamp(-1.0, 1.0) * unit - truth
    spread = float((truth - truth.mean()).square().sum())
    return NumberMetrics(
        rows=len(truth),
        r2=1 - float(errors.square().sum()) / spread if spread > 0 else None,
        mae=float(errors.abs().mean()),
        mean_mae=float((truth - truth.mean()).abs().mean()),
    )


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
    """Return all metrics of at least one row."""
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
    """Return the metrics of `results.json` in words."""
    if not found:
        return "no test data, so nothing was measured"
    if "mae" in found:
        return _number_text(found)
    if "noise" in found:
        return (
            f"accuracy {found['accuracy']:.2%} ± {found['noise']:.2%} on the private rows (largest class "
            f"{found['majority']:.2%}), balanced accuracy {found['balanced_accuracy']:.1%}, released within ε"
        )
    if found["majority"] == 1.0:
        return f"test accuracy {found['accuracy']:.2%}, but all test rows are of one class"
    said = f"test accuracy {found['accuracy']:.2%} (largest class {found['majority']:.2%})"
    area = "" if found["auc"] is None else f", AUC {found['auc']:.3f}"
    return f"{said}, balanced accuracy {found['balanced_accuracy']:.1%}{area}"


def _number_text(found: Mapping[str, Any]) -> str:
    share = "R² undefined" if found["r2"] is None else f"R² {found['r2']:.3f}"
    said = f"{share}, mean absolute error {found['mae']:.4g}"
    if "noise" in found:
        return f"{said} ± {found['noise']:.2g} on the private rows, released within ε"
    return f"test {said} (always predicting the mean: {found['mean_mae']:.4g})"


def one_class_warning(found: Mapping[str, Any]) -> str | None:
    """Return a warning if the test rows or the model's answers are all of one class, else None."""
    if found and "noise" not in found and found.get("majority") == 1.0:
        return (
            "All test rows are of one class, so nothing can be measured on them. Check that data.label is the column "
            "to predict and that its classes are spelled as in the file, or set a larger data.test."
        )
    if not found or found.get("predicted") != 1:
        return None
    said = "The model predicts one class for every row, so its accuracy is the share of that class."
    area = found.get("auc")
    if area is None or area < WORTH_RANKING:
        return f"{said} Use more records or a larger ε."
    return (
        f"{said} It still ranks rows, with an AUC of {area:.3f}. With two classes, quietgrad predict --threshold "
        f"{1 - found['majority']:.2g}, the share of the rare class, finds more of it."
    )

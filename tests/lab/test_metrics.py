"""Metrics against scikit-learn's, and what they say of a model that is none."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

from quietgrad.lab.run.metrics import accuracy, measure, metrics_of, metrics_text, one_class_warning
from quietgrad.tables import IGNORED


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_metrics_are_those_of_scikit_learn(classes: int) -> None:
    rng = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (500,), generator=rng)
    logits = (torch.randn(500, classes, generator=rng) + nn.functional.one_hot(labels, classes)).round(
        decimals=1
    )
    found = metrics_of(logits, labels)
    assert found.accuracy == pytest.approx(accuracy_score(labels, logits.argmax(1)))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(labels, logits.argmax(1)))
    shares = logits.double().softmax(1)
    scores = logits[:, 1] - logits[:, 0] if classes == 2 else shares
    assert found.auc == pytest.approx(roc_auc_score(labels, scores, multi_class="ovr"), abs=1e-3)
    assert found.majority == int(labels.bincount().max()) / 500
    assert found.predicted == classes


def test_a_constant_answer_is_named() -> None:
    labels = torch.tensor([0] * 87 + [1] * 13)
    found = metrics_of(torch.tensor([[1.0, 0.0]]).expand(100, 2), labels).as_dict()
    assert (found["accuracy"], found["majority"], found["balanced_accuracy"], found["auc"]) == (
        0.87,
        0.87,
        0.5,
        0.5,
    )
    assert "test accuracy 87.00% (largest class 87.00%), balanced accuracy 50.0%, AUC 0.500" in metrics_text(
        found
    )
    warning = one_class_warning(found)
    assert warning is not None
    assert "predicts one class" in warning
    assert "Use more records or a larger ε." in warning
    ranked = one_class_warning({**found, "auc": 0.752})
    assert ranked is not None
    assert (
        "an AUC of 0.752. With two classes, quietgrad predict --threshold 0.13, the share of the rare"
        in ranked
    )
    assert one_class_warning({**found, "predicted": 2}) is None


def test_rows_of_one_class_measure_nothing() -> None:
    found = metrics_of(
        torch.tensor([[1.0, 0.0]]).expand(100, 2), torch.zeros(100, dtype=torch.int64)
    ).as_dict()
    assert metrics_text(found) == "test accuracy 100.00%, but all test rows are of one class"
    warning = one_class_warning(found)
    assert warning is not None
    assert "All test rows are of one class" in warning


def test_numbers_are_measured_in_their_unit() -> None:
    truth = torch.tensor([-1.0, 0.0, 1.0, math.nan])
    said = torch.tensor([[-1.0], [0.5], [7.0], [0.0]])  # beyond the bounds counts as the bound
    found = measure(nn.Identity(), TensorDataset(said, truth), (0.0, 40.0))
    assert found is not None
    assert found.as_dict() == pytest.approx(
        {"rows": 3, "r2": 1 - 100 / 800, "mae": 10 / 3, "mean_mae": 40 / 3}
    )
    assert (
        metrics_text(found.as_dict())
        == "test R² 0.875, mean absolute error 3.333 (always predicting the mean: 13.33)"
    )
    assert one_class_warning(found.as_dict()) is None
    same = measure(nn.Identity(), TensorDataset(said[:2], torch.zeros(2)), (0.0, 40.0))
    assert same is not None
    assert same.as_dict()["r2"] is None


def test_rows_without_a_label_are_not_measured() -> None:
    test = TensorDataset(torch.eye(3), torch.tensor([0, IGNORED, 2]))
    found = measure(nn.Identity(), test)
    assert found is not None
    assert (found.rows, found.as_dict()["accuracy"]) == (2, 1.0)
    empty = TensorDataset(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert measure(nn.Identity(), empty) is None
    assert math.isnan(accuracy(nn.Identity(), empty))
    assert metrics_text({}) == "no test data, so nothing was measured"

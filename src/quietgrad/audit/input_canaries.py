"""The one-run audit with input canaries: mislabelled records, about which only training on them can teach a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int
from numpy import ndarray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from quietgrad.accounting.events import Phase
from quietgrad.audit.canaries import CONFIDENCE
from quietgrad.audit.one_run_report import one_run_report
from quietgrad.audit.report import AuditReport
from quietgrad.audit.shadows import losses

ASSUMPTIONS = (
    "an attacker who sees the final model only",
    "a training set whose size is public; left-out canaries are missing from it (add or remove one record)",
)


def mislabelled(labels: Int[Tensor, " m"], classes: int, rng: np.random.Generator) -> Int[Tensor, " m"]:
    """A wrong label for each record, uniform among the wrong ones."""
    shift = torch.from_numpy(rng.integers(1, classes, len(labels)))
    return (labels + shift.to(labels)) % classes


def audit_input_canaries(
    train: Callable[[TensorDataset], nn.Module],
    dataset: TensorDataset,
    phases: Sequence[Phase],
    *,
    canaries: int,
    classes: int,
    delta: float,
    confidence: float = CONFIDENCE,
    seed: int = 0,
) -> AuditReport:
    """Train once with half of the canaries and guess from the final model's losses which half.

    Args:
        train: trains a classifier on a data set of (inputs, labels), with the mechanism that is claimed.
        dataset: `canaries` records of it get wrong labels; each of those is kept with probability ½.
        phases: the plan of that training.

    Returns:
        the lower bound on ε beside the claim.

    Raises:
        ValueError: there are fewer than 2 canaries, or more than records.
    """
    inputs, labels = dataset.tensors
    if not 2 <= canaries <= len(labels):
        raise ValueError(f"Expected between 2 and {len(labels)} canaries (the records), got {canaries}.")
    rng = np.random.default_rng(seed)
    order = torch.from_numpy(rng.permutation(len(labels)))
    chosen, rest = order[:canaries], order[canaries:]
    wrong = mislabelled(labels[chosen], classes, rng)
    included = rng.random(canaries) < 0.5
    kept = torch.from_numpy(included)
    trained_on = TensorDataset(
        torch.cat([inputs[rest], inputs[chosen][kept]]), torch.cat([labels[rest], wrong[kept]])
    )
    model = train(trained_on)
    return one_run_report(
        "one-run input canaries",
        -_surprise(model, inputs[chosen], wrong, classes),
        included,
        phases,
        delta=delta,
        confidence=confidence,
        assumptions=ASSUMPTIONS,
    )


def _surprise(
    model: nn.Module, inputs: Tensor, wrong: Int[Tensor, " m"], classes: int
) -> Float64[ndarray, " m"]:
    """Loss on the canary's label, compared with the mean over all labels: takes out how hard the input is."""
    every = [losses(model, inputs, torch.full_like(wrong, label)) for label in range(classes)]
    own: Float64[ndarray, " m"] = losses(model, inputs, wrong) - np.mean(every, axis=0)
    return own

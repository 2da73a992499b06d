"""Public losses made of images nobody labelled: what GEP needs of public data."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad._kernels.transfer import upload
from quietgrad._representations.base import PublicLosses


def random_label_losses(inputs: Tensor, classes: int, *, chunk: int = 64) -> PublicLosses:
    """Cross-entropy of public inputs with labels drawn at random, anew in every step.

    Each step runs public losses under its own public seed, so the labels are the same on every rank and in every pass
    of one step.

    Args:
        inputs: `[m, ...]`, as the model takes them.
        classes: how many labels there are.
        chunk: inputs that go through the model at once.

    Returns:
        a function `model -> losses[m]`.

    Raises:
        ValueError: there is no input, or fewer than 2 classes.
    """
    if len(inputs) == 0 or classes < 2 or chunk < 1:
        raise ValueError(
            f"Expected at least one input, classes >= 2 and chunk >= 1, got {len(inputs)}, {classes} and {chunk}."
        )

    def random_labels(model: nn.Module) -> Iterator[Tensor]:
        labels = torch.randint(classes, (len(inputs),))
        for x, y in _chunks_for(model, inputs, labels, chunk):
            yield F.cross_entropy(model(x), y, reduction="none")

    return random_labels


def labelled_losses(inputs: Tensor, labels: Tensor, *, chunk: int = 64) -> PublicLosses:
    """Cross-entropy of public inputs with their public labels.

    Args:
        inputs: `[m, ...]`, as the model takes them.
        labels: `[m]` classes.
        chunk: inputs that go through the model at once.

    Returns:
        a function `model -> losses[m]`.

    Raises:
        ValueError: there is no input, or not one label for each.
    """
    if len(inputs) != len(labels) or len(inputs) == 0 or chunk < 1:
        raise ValueError(
            f"Expected one label per input, at least one, and chunk >= 1, got {len(labels)}, {len(inputs)}, {chunk}."
        )

    def true_labels(model: nn.Module) -> Iterator[Tensor]:
        for x, y in _chunks_for(model, inputs, labels, chunk):
            yield F.cross_entropy(model(x), y, reduction="none")

    return true_labels


def _chunks_for(
    model: nn.Module, inputs: Tensor, labels: Tensor, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels in chunks, on the model's device."""
    device = next((parameter.device for parameter in model.parameters()), inputs.device)
    for x, y in zip(inputs.split(chunk), labels.split(chunk), strict=True):
        yield upload(x, device), upload(y, device)

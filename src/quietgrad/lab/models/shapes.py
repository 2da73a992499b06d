"""Input shapes: checked for the user, followed through a network without arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


def image_shape(input_shape: tuple[int, ...], model: str, *, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width), or an error if the model cannot take this input."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise ValueError(
            f"model={model!r} takes images (channels, height, width) of at least {smallest}x{smallest}, "
            f"got input_shape={input_shape}. Choose another model or resize the images."
        )
    channels, height, width = input_shape
    return channels, height, width


def flat_width(features: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Number of values that `features` makes of one input."""
    with torch.no_grad():
        return int(features(torch.zeros(1, *input_shape)).numel())


def with_classifier(
    features: nn.Sequential,
    input_shape: tuple[int, ...],
    hidden: int,
    activation: Callable[[], nn.Module],
    num_classes: int,
) -> nn.Sequential:
    """features - fc hidden - activation - fc classes, as one flat Sequential."""
    width = flat_width(features, input_shape)
    return features.extend([nn.Linear(width, hidden), activation(), nn.Linear(hidden, num_classes)])

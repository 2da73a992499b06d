"""A linear head and a perceptron with hidden layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One linear layer on the flattened input: the head of transfer learning."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(input_shape: tuple[int, ...], num_classes: int, hidden: Sequence[int] = (256,)) -> nn.Module:
    """Fully connected layers with tanh between them.

    Args:
        input_shape: shape of one input.
        num_classes: number of outputs.
        hidden: widths of the hidden layers.
    """
    if not hidden or min(hidden) < 1:
        raise ValueError(
            f"Expected hidden widths >= 1, got hidden={list(hidden)}. Use model 'linear' for none."
        )
    model = nn.Sequential(nn.Flatten())
    width = math.prod(input_shape)
    for hidden_width in hidden:
        model.extend([nn.Linear(width, hidden_width), nn.Tanh()])
        width = hidden_width
    return model.append(nn.Linear(width, num_classes))

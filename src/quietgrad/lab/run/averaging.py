"""Averaged weights: free post-processing that removes much of the noise of the last steps."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors = tuple[Tensor, ...] | list[Tensor]


def weight_average(model: nn.Module, decay: float) -> AveragedModel:
    """Return the exponential moving average of a model's weights; call `update_parameters(model)` after each step.

    The decay warms up, min(decay, (1 + t)/(10 + t)), so that the first, random weights are soon forgotten.

    Args:
        model: the model in training; its averaged twin is `module` of what is returned.
        decay: per step, in [0, 1).
    """

    @torch.no_grad()
    def mix(averaged: Tensors, current: Tensors, updates: Tensor | int) -> None:
        steps = int(updates)
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + steps) / (10 + steps)))

    return AveragedModel(model, multi_avg_fn=mix)

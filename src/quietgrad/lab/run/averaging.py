"""Averaged weights: free post-processing that removes much of the noise of the last steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


class WeightAverage:
    """Exponential moving average of a model's weights.

    The decay warms up, min(decay, (1 + t)/(10 + t)), so that the random initial weights are soon forgotten.

    Args:
        model: the model in training; its averaged twin is `self.model`.
        decay: per step, in [0, 1).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"Expected decay in [0, 1), got {decay}.")
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._decay, self._steps = decay, 0

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "steps": self._steps}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self._steps = saved["steps"]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Take in the weights after a step."""
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        averaged = [p.detach() for p in self.model.parameters()]
        current = [p.detach() for p in model.parameters()]
        torch._foreach_lerp_(averaged, current, 1 - decay)
        self._steps += 1

"""`p.grad`: where a release is written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from quietgrad.gradients.blocks import Blocks


def drop_grads(parameters: Mapping[str, nn.Parameter]) -> None:
    """As zero_grad() does: the next release will overwrite them, and the backward needs the memory."""
    for parameter in parameters.values():
        parameter.grad = None


def write_grads(parameters: Mapping[str, nn.Parameter], update: Blocks) -> None:
    """Overwrite every `p.grad` with its block; zero where there is none."""
    for name, parameter in parameters.items():
        block = update.get(name)
        parameter.grad = torch.zeros_like(parameter) if block is None else block.to(parameter.dtype)

"""Slow, obvious references in float64: a loop over samples, nothing batched, nothing clever."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Losses = Callable[[nn.Module, tuple[Tensor, ...]], Tensor]
"""(model, inputs) -> losses [n]."""


def looped(model: nn.Module, inputs: tuple[Tensor, ...], losses: Losses, n: int) -> dict[str, Tensor]:
    """Per-sample gradients `[n, *shape]`: an ordinary backward of each loss alone."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in trained}
    for loss in losses(model, inputs)[:n] if n else ():
        found = torch.autograd.grad(
            loss, list(trained.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for name, gradient in zip(trained, found, strict=True):
            rows[name].append(gradient)
    return {name: torch.stack(rows[name]) if n else p.new_zeros(0, *p.shape) for name, p in trained.items()}

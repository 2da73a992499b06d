"""One loss per row: the vector that makes the mean/sum trap of reduced losses impossible."""

from __future__ import annotations

from torch import Tensor


def check_losses(losses: Tensor) -> None:
    """Refuse anything but a differentiable vector of losses, with the remedy."""
    if losses.dim() == 0:
        raise ValueError(
            'Expected one loss per row, got a scalar. Pass reduction="none" to the loss; the mean over the batch is '
            "taken by release(), with the constant qN."
        )
    if losses.dim() > 2 or (losses.dim() == 2 and losses.shape[1] == 0):
        raise ValueError(
            f"Expected losses of shape [n], or [n, views], got {tuple(losses.shape)}. Reduce them to one loss per row."
        )
    if len(losses) and not losses.requires_grad:
        raise ValueError("The losses do not require grad. Call the model outside torch.no_grad().")

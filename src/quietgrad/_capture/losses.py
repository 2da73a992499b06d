"""Losses that can be one number per sample, and the rows of those that are no number."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def check_losses(losses: Tensor) -> None:
    """Refuse anything but a differentiable vector of losses: one loss per row leaves no mean or sum to mistake."""
    if losses.dim() == 0:
        raise ValueError(
            'Expected one loss per row, got a scalar. Pass reduction="none" to the loss; the mean over the batch is '
            "taken by release(), with the constant qN."
        )
    if losses.dim() > 2 or (losses.dim() == 2 and losses.shape[1] == 0):
        empty = " and no views" if losses.dim() == 2 else ""
        raise ValueError(
            f"Expected losses of shape [n], or [n, views], got {losses.dim()} dimensions{empty}. Reduce them to one "
            "loss per row."
        )
    if len(losses) and not losses.requires_grad:
        raise ValueError("The losses do not require grad. Call the model outside torch.no_grad().")


def check_vector(losses: Tensor) -> None:
    """Refuse anything but a vector, which views were averaged to."""
    if losses.dim() != 1:
        raise ValueError(
            f"Expected one loss per sample, a vector [n], got {losses.dim()} dimensions. "
            'Pass reduction="none" and reduce to one number per sample.'
        )


def mark_rows(b: Float[Tensor, "n ..."], bad: Bool[Tensor, " n"]) -> Float[Tensor, "n ..."]:
    """Make rows of samples whose loss is not finite NaN, so that the clip drops them: they contribute zero.

    Mostly they are, and nothing is copied: rows of others are then computed from the same memory as ever.
    """
    if b.device.type != "cpu":
        return b.masked_fill(bad.view(-1, *[1] * (b.dim() - 1)), torch.nan)
    unmarked = bad & b.flatten(1).isfinite().all(1) if b.dim() > 1 else bad
    return b.masked_fill(unmarked.view(-1, *[1] * (b.dim() - 1)), torch.nan) if bool(unmarked.any()) else b

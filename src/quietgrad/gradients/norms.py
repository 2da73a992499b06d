"""Sums of squares that neither overflow, underflow nor fall below the truth by more than a relative 1e-5."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

SMALLEST_TRUSTED = 1e-28
"""A float32 sum of squares below this may have lost its terms to underflow."""


def row_squared_norms(rows: Float[Tensor, "n *rest"]) -> Float64[Tensor, " n"]:
    """‖row‖² in float64. Squares add in the rows' own precision (all terms are positive: no cancellation), but a
    sum that over- or underflowed is added again in float64."""
    flat = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    if flat.shape[1] == 0:
        return torch.zeros(len(flat), dtype=torch.float64, device=rows.device)
    norms: Tensor = torch.linalg.vector_norm(flat, dim=1).double().square()
    suspect = ~((norms > SMALLEST_TRUSTED) & (norms < 1 / SMALLEST_TRUSTED))
    if bool(suspect.any()):
        chosen = suspect.nonzero().flatten()
        norms[chosen] = flat[chosen].double().square().sum(1)
    return norms

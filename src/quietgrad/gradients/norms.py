"""Sums of squares that neither overflow, underflow nor fall below the truth, whatever the length of the rows.

    ‖row‖² ≤ (1 + slack)·Σ_runs fl(Σ_{j in run} x_j²)        the outer sum in float64

Formal guarantee: all terms are positive, so a float32 sum of m squares is at most (m + 1)·u below the true one, and its
root and the root's square 2u more; u = 2⁻²⁴. With runs of RUN numbers the slack is 7.9·10⁻⁶ for rows of any length.
Squares below 2⁻¹²⁶ may be lost: a sum that p of them could have changed by 10⁻⁶ is added again in float64, as is one
that overflowed. float64 holds the square of a float32 exactly.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.blocks import as_rows

RUN = 128
"""Squares that are added in the rows' own precision."""

LOST = 2.0**-126
"""The largest square that a processor may take for zero."""

EXCESS = 2e-5
"""The most, relative to the truth, that a squared norm lies above it: the slack, for rounding that went up."""

AT_ONCE = 1 << 20
"""Numbers that are converted to float64 at a time."""


def row_squared_norms(rows: Float[Tensor, "n *rest"]) -> Float64[Tensor, " n"]:
    """‖row‖² in float64, never below the truth and at most EXCESS of it above it."""
    flat = as_rows(rows)
    if flat.dtype == torch.float64:
        return _in_float64(flat)
    squared = (1 + slack(flat.dtype, min(RUN, flat.shape[1]))) * _in_runs(flat)
    trusted = (squared > flat.shape[1] * LOST * 1e6) & squared.isfinite()
    if not bool(trusted.all()):
        chosen = (~trusted).nonzero().flatten()
        squared[chosen] = _in_float64(flat[chosen])
    return squared


def slack(dtype: torch.dtype, terms: int) -> float:
    """How far a norm's square, computed from that many squares in a precision, may lie below the truth."""
    u = float(torch.finfo(dtype).eps) / 2
    return (terms + 4) * u / (1 - (terms + 4) * u)


def _in_runs(flat: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    size = flat.shape[1]
    whole = size - size % RUN
    squared = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    if whole:
        norms = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, RUN)), dim=2)
        squared += norms.double().square_().sum(1)
    if whole < size:
        squared += torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square_()
    return squared


def _in_float64(flat: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    squared = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    step = max(1, AT_ONCE // max(1, len(flat)))
    for start in range(0, flat.shape[1], step):
        squared += flat[:, start : start + step].double().square().sum(1)
    return squared * (1 + slack(torch.float64, flat.shape[1]))

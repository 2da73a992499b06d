"""Squared norms and weighted sums of formed rows in C, in float64; the reference is `_gradients.row_arithmetic`."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import function
from quietgrad._kernels.rounding import slack


def row_squared_norms(rows: Float[Tensor, "n *rest"]) -> Float64[Tensor, " n"]:
    """Compute ‖row‖² in float64, with what p roundings may have taken away added."""
    # Squares of float32 numbers are exact in float64, and so the loop has no overflow, no underflow and no second
    # pass.
    flat = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    flat = flat if flat.stride(1) == 1 else flat.contiguous()
    squared = torch.empty(flat.shape[0], dtype=torch.float64)
    count, length = flat.shape
    function("qg_row_squares")(
        flat.data_ptr(),
        flat.stride(0),
        count,
        length,
        squared.data_ptr(),
        level_number(),
        torch.get_num_threads(),
    )
    return squared.mul_(1 + slack(torch.float64, length))


def weighted_rows(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float64[Tensor, " p"]:
    """Compute Σ_i w_i·row_i in the order of the rows; one of weight 0 is not read.

    All rows are added in float64: two batches that differ in one row of length C differ by at most n²·2⁻⁵²·C more,
    3·10⁻⁶·C for a hundred thousand rows.
    """
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    # Weights stay in float64: a tiny one would be rounded coarsely, or to zero, in float32.
    wide = weights.double().contiguous()
    total = torch.empty(rows.shape[1], dtype=torch.float64)
    count, length = rows.shape
    function("qg_row_sums")(
        rows.data_ptr(),
        rows.stride(0),
        wide.data_ptr(),
        count,
        length,
        total.data_ptr(),
        level_number(),
        torch.get_num_threads(),
    )
    return total

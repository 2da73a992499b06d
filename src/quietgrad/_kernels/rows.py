"""Squared norms and weighted sums of formed rows in C, in float64; the reference is `gradients.row_arithmetic`."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.library import address, in_use, level_number


def served(rows: Float[Tensor, "n p"]) -> bool:
    """Whether the kernels take these rows: float32 on the CPU, not empty, and they are there."""
    return (
        rows.dtype == torch.float32
        and rows.device.type == "cpu"
        and rows.numel() > 0
        and in_use() is not None
    )


def row_squares(library: ctypes.CDLL, rows: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    """‖row‖², rounded p times in float64."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    squared = torch.empty(len(rows), dtype=torch.float64)
    library.qg_row_squares(
        address(rows),
        *map(ctypes.c_int64, (rows.stride(0), *rows.shape)),
        address(squared),
        level_number(),
        torch.get_num_threads(),
    )
    return squared


def row_sums(
    library: ctypes.CDLL, weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]
) -> Float64[Tensor, " p"]:
    """Σ_i w_i·row_i in the order of the rows; one of weight 0 is not read."""
    rows = rows if rows.stride(1) == 1 else rows.contiguous()
    wide = weights.double().contiguous()
    total = torch.empty(rows.shape[1], dtype=torch.float64)
    library.qg_row_sums(
        address(rows),
        ctypes.c_int64(rows.stride(0)),
        address(wide),
        *map(ctypes.c_int64, rows.shape),
        address(total),
        level_number(),
        torch.get_num_threads(),
    )
    return total

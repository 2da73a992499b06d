"""Sums of float32 runs in float64 in C, one pass over all of them; the reference is `gradients.sums`."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from quietgrad.kernels.library import address, level_number


def add_runs(
    library: ctypes.CDLL, parts: Float32[Tensor, "r m"], total: Float64[Tensor, " m"], *, begun: bool
) -> None:
    """total = Σ_r parts_r, or total + Σ_r parts_r where it has begun; both contiguous, on the CPU."""
    library.qg_add_runs(
        address(parts),
        ctypes.c_int64(len(parts)),
        ctypes.c_int64(parts.shape[1]),
        int(begun),
        address(total),
        level_number(),
        torch.get_num_threads(),
    )

"""Gradients of a LayerNorm's scale and shift for every sample in C; the reference is in `_capture.adapters.norm`."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import address, load_library


def norm_gradients(
    x: Float[Tensor, "n t d"],
    b: Float[Tensor, "n t d"],
    mean: Float[Tensor, "n t"],
    scale: Float[Tensor, "n t"],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Compute Σ_t b_t ∘ (x_t − mean_t)·scale_t and Σ_t b_t in one pass."""
    read = [part.contiguous() for part in (x, b, mean, scale)]
    written = [torch.empty(len(b), b.shape[2]) for _ in range(2)]
    load_library().qg_norm_rows(
        *map(address, read),
        *map(ctypes.c_int64, b.shape),
        *map(address, written),
        level_number(),
        torch.get_num_threads(),
    )
    return written[0], written[1]

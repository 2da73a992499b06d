"""Gradients of a LayerNorm's scale and shift for every sample in C; the reference is in `capture.adapters.norm`."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._kernels.library import address, in_use, level_number


def served(*tensors: Tensor) -> bool:
    """Whether the kernel takes these: float32 on the CPU, not empty, and it is there."""
    return in_use() is not None and all(
        x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in tensors
    )


def norm_rows(
    library: ctypes.CDLL,
    x: Float[Tensor, "n t d"],
    b: Float[Tensor, "n t d"],
    mean: Float[Tensor, "n t"],
    scale: Float[Tensor, "n t"],
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Σ_t b_t ∘ (x_t − mean_t)·scale_t and Σ_t b_t."""
    read = [part.contiguous() for part in (x, b, mean, scale)]
    written = [torch.empty(len(b), b.shape[2]) for _ in range(2)]
    library.qg_norm_rows(
        *map(address, read),
        *map(ctypes.c_int64, b.shape),
        *map(address, written),
        level_number(),
        torch.get_num_threads(),
    )
    return written[0], written[1]

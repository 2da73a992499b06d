"""What Gram norms need of each sample in C, of half the Gram matrices; the reference is `gradients.gram`."""

from __future__ import annotations

import ctypes
import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.library import address, in_use, level_number

LANES, DEPTH = 8, 512
"""As gram_rows.c has them: numbers in a vector (twice as many with AVX-512), and those of an inner product that are
added up in float32."""


class Factor(ctypes.Structure):
    """`struct factor` of gram_rows.c."""

    _fields_ = (("values", ctypes.c_void_p), ("stride", ctypes.c_int64), ("length", ctypes.c_int64))


def served(a: Tensor, b: Tensor) -> bool:
    """Whether the kernel takes these factors: float32 on the CPU, not empty, and it is there."""
    return in_use() is not None and all(
        x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in (a, b)
    )


def roundings(length: int) -> int:
    """Of a term of an inner product of so many numbers: its product, the sums of its lane, those of the lanes (three of
    8 lanes; four of 16, in which there are half as many sums). What float64 rounds afterwards is less than one of
    float32's."""
    return math.ceil(min(length, DEPTH) / LANES) + 5


def gram_rows(
    library: ctypes.CDLL, a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"], *, lost: float
) -> tuple[Float64[Tensor, " n"], Float64[Tensor, "n 3"]]:
    """Σ_ts (a_t·a_s)(b_t·b_s), and the sums over t of ‖a_t‖‖b_t‖, ‖a_t‖ and ‖b_t‖.

    Args:
        lost: is added to each ‖a_t‖² and ‖b_t‖².
    """
    a, b = (x if x.stride(2) == 1 else x.contiguous() for x in (a, b))
    squared = torch.empty(len(a), dtype=torch.float64)
    roots = torch.empty(len(a), 3, dtype=torch.float64)
    of_a, of_b = (Factor(x.data_ptr(), x.stride(1), x.shape[2]) for x in (a, b))
    library.qg_gram_sums(
        ctypes.byref(of_a),
        ctypes.c_int64(a.stride(0)),
        ctypes.byref(of_b),
        ctypes.c_int64(b.stride(0)),
        ctypes.c_int64(len(a)),
        ctypes.c_int64(a.shape[1]),
        ctypes.c_double(lost),
        address(squared),
        address(roots),
        level_number(),
        torch.get_num_threads(),
    )
    return squared, roots

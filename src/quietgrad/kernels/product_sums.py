"""Weighted sums of products of factors in C; the reference is `gradients.row_arithmetic.weighted_products`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.kernels.library import RECYCLED, Scratch, address, in_use, level_number

SCRATCH = Scratch()


class Rows(ctypes.Structure):
    """`struct rows` of product_sums.c."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        ("apart", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("length", ctypes.c_int64),
    )


def served(a: Tensor, b: Tensor) -> bool:
    """Whether the kernel takes these factors: float32 on the CPU, not empty, on a processor for which it is faster than
    torch's products."""
    return (
        in_use() is not None
        and level_number() > 0
        and all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in (a, b))
    )


def product_sums(
    library: ctypes.CDLL,
    b: Float[Tensor, "n t o"],
    a: Float[Tensor, "n t i"],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
) -> Float64[Tensor, "o i"]:
    """Σ_n w_n Σ_t b_t a_tᵀ; positions within one of `places` in float32, these sums in float64.

    Args:
        places: which positions, those of all samples side by side, are added up at a time; together they are all.
    """
    a, b = (x if x.stride(2) == 1 else x.contiguous() for x in (a, b))
    (n, t, i), o = a.shape, b.shape[2]
    w = weights.float().contiguous()
    starts = (ctypes.c_int64 * (len(places) + 1))(*(place.start for place in places), n * t)
    library.qg_packed_size.restype = ctypes.c_int64
    size = library.qg_packed_size(ctypes.c_int64(o), ctypes.c_int64(i), ctypes.c_int64(n * t))
    # A sum that is smaller than its factors finds room where those of the sums before it lay.
    larger = 2 * o * i > a.numel() + b.numel()
    total = RECYCLED((o, i), torch.float64) if larger else torch.empty(o, i, dtype=torch.float64)
    of_b, of_a = (Rows(x.data_ptr(), x.stride(0), x.stride(1), x.shape[2]) for x in (b, a))
    library.qg_product_sums(
        ctypes.byref(of_b),
        ctypes.byref(of_a),
        address(w),
        ctypes.c_int64(t),
        int(i < o),
        starts,
        ctypes.c_int64(len(places)),
        ctypes.c_void_p(SCRATCH("packed", size, np.float32).ctypes.data),
        address(total),
        level_number(),
        torch.get_num_threads(),
    )
    return total

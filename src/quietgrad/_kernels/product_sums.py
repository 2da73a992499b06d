"""Weighted sums of products of factors in C; the reference is `gradients.row_arithmetic.weighted_products`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.library import RECYCLED, Scratch, address, in_use, level_number

SCRATCH = Scratch()


class Rows(ctypes.Structure):
    """`struct rows` of product_sums.c."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("apart", "far", "stride", "line", "length")),
    )

    @classmethod
    def of(cls, factor: Float[Tensor, "n *lines t d"]) -> Rows:
        """Of a tensor whose last dimension is contiguous; of pictures `[n, lines, t, d]` line by line."""
        far = factor.stride(1) if factor.dim() == 4 else 0
        *_, line, length = factor.shape
        return cls(factor.data_ptr(), factor.stride(0), far, factor.stride(-2), line, length)


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
    i, o = a.shape[2], b.shape[2]
    # A sum that is smaller than its factors finds room where those of the sums before it lay.
    larger = 2 * o * i > a.numel() + b.numel()
    total = RECYCLED((o, i), torch.float64) if larger else torch.empty(o, i, dtype=torch.float64)
    _sum_into(library, total, b, a, weights, places)
    return total


def patch_sums(
    library: ctypes.CDLL,
    b: Float[Tensor, "n t o"],
    strips: Sequence[Float[Tensor, "n h w i"]],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
) -> Float64[Tensor, "o strips_i"]:
    """The same for a's that are the strips of every patch side by side, each read off the picture as it lies."""
    b = b if b.stride(2) == 1 else b.contiguous()
    i = strips[0].shape[3]
    total = torch.empty(b.shape[2], len(strips), i, dtype=torch.float64)
    for number, strip in enumerate(strips):
        _sum_into(library, total[:, number], b, strip, weights, places)
    return total.flatten(1)


def _sum_into(
    library: ctypes.CDLL,
    total: Float64[Tensor, "o i"],
    b: Float[Tensor, "n t o"],
    a: Float[Tensor, "n *places i"],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
) -> None:
    (n, t, o), i = b.shape, a.shape[-1]
    w = weights.float().contiguous()
    starts = (ctypes.c_int64 * (len(places) + 1))(*(place.start for place in places), n * t)
    library.qg_packed_room.restype = ctypes.c_int64
    sizes = (ctypes.c_int64(size) for size in (o, i, n * t, len(places)))
    library.qg_sums_of_products(
        ctypes.byref(Rows.of(b)),
        ctypes.byref(Rows.of(a)),
        address(w),
        ctypes.c_int64(t),
        int(i < o),
        starts,
        ctypes.c_int64(len(places)),
        ctypes.c_void_p(SCRATCH("packed", library.qg_packed_room(*sizes), np.float32).ctypes.data),
        address(total),
        ctypes.c_int64(total.stride(0)),
        level_number(),
        torch.get_num_threads(),
    )

"""Weighted sums of products of factors in C; the reference is `_gradients.row_arithmetic.products_in_runs`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import address, is_float32, load_library
from quietgrad._kernels.patches import Window, positions_first, strips
from quietgrad._kernels.rounding import runs
from quietgrad._kernels.scratch import Scratch

SCRATCH = Scratch()

LONG_STRIP = 32
"""Numbers of a row of a convolution's kernel from which on patches are read off their picture: each strip is packed by
itself, and a short one would be mostly filled up."""


class Rows(ctypes.Structure):
    """`struct rows` of product_sums.c."""

    _fields_ = (
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("apart", "far", "stride", "line", "length")),
    )

    @classmethod
    def of(cls, factor: Float[Tensor, "n *lines t d"]) -> Rows:
        """Describe a tensor whose last dimension is contiguous; pictures `[n, lines, t, d]` line by line."""
        far = factor.stride(1) if factor.dim() == 4 else 0
        *_, line, length = factor.shape
        return cls(factor.data_ptr(), factor.stride(0), far, factor.stride(-2), line, length)


def takes_products(b: Tensor, a: Tensor, _: Tensor, places: Sequence[slice]) -> bool:
    """Tell whether the kernel is faster: several float32 runs, on a processor with wide vectors."""
    # A single run is one matrix product, which torch's own library does as fast; only the sum over runs in float64 is
    # slow there.
    return len(places) > 1 and level_number() > 0 and is_float32(a, b)


def products_in_runs(
    b: Float[Tensor, "n t o"],
    a: Float[Tensor, "n t i"],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
) -> Float64[Tensor, "o i"]:
    """Compute Σ_n w_n Σ_t b_t a_tᵀ in one pass, which writes no run's product to memory.

    Args:
        places: the runs; together they are all positions of all samples.
    """
    # The kernel reads whole rows as vectors, so the last dimension must be contiguous; other strides are passed on.
    a, b = (x if x.stride(2) == 1 else x.contiguous() for x in (a, b))
    total = torch.empty(b.shape[2], a.shape[2], dtype=torch.float64)
    _sum_into(total, b, a, weights, places)
    return total


def takes_patches(inputs: Tensor, backprops: Tensor, _: Tensor, window: Window) -> bool:
    """Tell whether patches are read off their picture: one image a sample, long strips without gaps."""
    return (
        window.dims == 2
        and window.groups == 1
        and window.dilation[1] == 1
        and window.kernel[1] * window.kernel[3] >= LONG_STRIP
        and inputs.shape[1] == 1
        and level_number() > 0
        and is_float32(inputs, backprops)
    )


def patch_products(
    inputs: Float[Tensor, "n m i h w"],
    backprops: Float[Tensor, "n m o h2 w2"],
    weights: Float[Tensor, " n"],
    window: Window,
) -> Float64[Tensor, "o taps"]:
    """Compute the same sum for the patches of a picture, each strip read where it lies: nothing is unfolded."""
    b = positions_first(backprops)
    # The kernel reads whole vectors along the last dimension; the others may have any stride.
    b = b if b.stride(2) == 1 else b.contiguous()
    places = list(runs(len(b), b.shape[1], b.dtype))
    parts = strips(inputs, window)
    total = torch.empty(b.shape[2], len(parts), parts[0].shape[3], dtype=torch.float64)
    # The strips of a patch are columns of the result side by side, so each fills a slice of it.
    for number, strip in enumerate(parts):
        _sum_into(total[:, number], b, strip, weights, places)
    return total.flatten(1)


def _sum_into(
    total: Float64[Tensor, "o i"],
    b: Float[Tensor, "n t o"],
    a: Float[Tensor, "n *places i"],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
) -> None:
    (n, t, o), i, library = b.shape, a.shape[-1], load_library()
    w = weights.float().contiguous()
    # C gets the same cuts between runs as the reference, so both obey the same rounding bound.
    starts = (ctypes.c_int64 * (len(places) + 1))(*(place.start for place in places), n * t)
    library.qg_packed_room.restype = ctypes.c_int64
    room = library.qg_packed_room(*(ctypes.c_int64(size) for size in (o, i, n * t, len(places))))
    # Packed factors are as large as the factors: fresh pages would cost more than the packing.
    with SCRATCH.borrow("packed", room, np.float32) as packed:
        library.qg_sums_of_products(
            ctypes.byref(Rows.of(b)),
            ctypes.byref(Rows.of(a)),
            address(w),
            ctypes.c_int64(t),
            int(i < o),  # the narrower factor is the one to be scaled
            starts,
            ctypes.c_int64(len(places)),
            ctypes.c_void_p(packed.ctypes.data),
            address(total),
            ctypes.c_int64(total.stride(0)),
            level_number(),
            torch.get_num_threads(),
        )

"""The sums of Gram norms in C, from half of each Gram matrix; the reference is in `_gradients.gram`."""

from __future__ import annotations

import ctypes
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import address, load_library

LANES, DEPTH = 8, 512
"""As gram_rows.c has them: numbers in a vector (twice as many with AVX-512), and those of an inner product that are
added up in float32."""


class GramSums(NamedTuple):
    """What a Gram norm needs of every sample, as one implementation rounds it.

    Args:
        squared: Σ_ts (a_t·a_s)(b_t·b_s).
        roots: the sums over t of ‖a_t‖‖b_t‖, ‖a_t‖ and ‖b_t‖, with what may be lost of each.
        roundings: how often, at most, one of the products that are added up was rounded in the factors' precision.
    """

    squared: Float64[Tensor, " n"]
    roots: Float64[Tensor, "n 3"]
    roundings: int


class Factor(ctypes.Structure):
    """`struct factor` of gram_rows.c."""

    _fields_ = (("values", ctypes.c_void_p), ("stride", ctypes.c_int64), ("length", ctypes.c_int64))


def roundings(length: int) -> int:
    """Count the roundings of a term in an inner product of `length` numbers.

    They are its product, the sums of its lane, and those of the lanes: three of 8 lanes, or four of 16, in which there
    are half as many sums. What float64 rounds afterwards is less than one of float32's.
    """
    return math.ceil(min(length, DEPTH) / LANES) + 5


def gram_sums(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"], lost: float) -> GramSums:
    """Compute the sums without keeping a Gram matrix.

    Args:
        lost: is added to each ‖a_t‖² and ‖b_t‖².
    """
    # Positions and samples may lie anywhere; only the numbers of one position must be side by side.
    a, b = (x if x.stride(2) == 1 else x.contiguous() for x in (a, b))
    squared = torch.empty(len(a), dtype=torch.float64)
    roots = torch.empty(len(a), 3, dtype=torch.float64)
    # Only half of each Gram matrix is computed, since it is symmetric, and no entry is written to memory: each pair
    # of tiles is multiplied and added at once.
    of_a, of_b = (Factor(x.data_ptr(), x.stride(1), x.shape[2]) for x in (a, b))
    load_library().qg_gram_sums(
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
    return GramSums(squared, roots, roundings(a.shape[2]) + roundings(b.shape[2]))

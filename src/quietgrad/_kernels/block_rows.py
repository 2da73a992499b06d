"""Norms and weighted sums of many small blocks in C, by one call each; the reference is `_gradients.small_blocks`."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import function, has_function
from quietgrad._kernels.rounding import slack

Factors = tuple[Tensor | None, Tensor]
"""What a block has of each sample: b `[n, o]`, times a `[n, i]` where the block is a matrix: G_n = b_n a_nᵀ."""


class BlockStruct(ctypes.Structure):
    """`struct block` of rows.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b")),
        *((name, ctypes.c_int64) for name in ("a_apart", "b_apart", "inputs", "outputs")),
        ("excess", ctypes.c_double),
    )


def takes_blocks(blocks: Sequence[Factors], *_: Tensor) -> bool:
    """Tell whether all factors are float32 rows on the CPU, each in one run of memory, with numbers in them."""
    return has_function("qg_block_norms") and all(
        rows.dtype == torch.float32 and rows.device.type == "cpu" and rows.numel() > 0 and rows.stride(1) == 1
        for factors in blocks
        for rows in factors
        if rows is not None
    )


def block_norms(blocks: Sequence[Factors]) -> Float64[Tensor, " n"]:
    """Compute Σ over blocks of ‖b_n‖²‖a_n‖² in float64, with what the roundings may have taken away added."""
    count, samples = len(blocks), len(blocks[0][1])
    out = torch.empty(samples, dtype=torch.float64)
    function("qg_block_norms")(_structs(blocks), count, samples, out.data_ptr(), level_number())
    return out


def block_sums(blocks: Sequence[Factors], weights: Float[Tensor, " n"]) -> Float64[Tensor, " p"]:
    """Compute Σ_n w_n b_n a_nᵀ of all blocks, one after the other, as `rows.weighted_rows` adds rows."""
    size = sum([b.shape[1] * (1 if a is None else a.shape[1]) for a, b in blocks])
    wide, out = weights.double().contiguous(), torch.empty(size, dtype=torch.float64)
    function("qg_block_sums")(
        _structs(blocks), len(blocks), len(wide), wide.data_ptr(), out.data_ptr(), level_number()
    )
    return out


def _structs(blocks: Sequence[Factors]) -> ctypes.Array[BlockStruct]:
    return (BlockStruct * len(blocks))(*[_struct(a, b) for a, b in blocks])


def _struct(a: Tensor | None, b: Tensor) -> BlockStruct:
    outputs = b.shape[1]
    if a is None:
        return BlockStruct(None, b.data_ptr(), 0, b.stride(0), 0, outputs, _excess(outputs))
    inputs = a.shape[1]
    excess = _excess(outputs) * _excess(inputs)
    return BlockStruct(a.data_ptr(), b.data_ptr(), a.stride(0), b.stride(0), inputs, outputs, excess)


@functools.cache
def _excess(terms: int) -> float:
    """By what a sum of so many squares is multiplied: asked for every block in every step."""
    return 1 + slack(torch.float64, terms)

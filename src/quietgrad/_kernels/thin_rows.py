"""Products of rows with a matrix of few columns, in C; the reference is `_gradients.row_arithmetic`."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import function, has_function, is_float32

WIDEST = 16
"""Columns that the kernels take."""


def takes_thin(rows: Tensor, matrix: Tensor) -> bool:
    """Tell whether a matrix has few columns, and rows lie at equal distances."""
    # An editable install may keep a library of older sources, without these two.
    return matrix.shape[1] <= WIDEST and _evenly_spaced(rows, matrix) and has_function("qg_row_times")


def takes_lifts(rows: Tensor, thin: Tensor, lifted: Tensor, _scale: float) -> bool:
    """Tell whether there are few products to add, and rows lie at equal distances."""
    few = thin.shape[2] <= WIDEST and thin.is_contiguous() and is_float32(thin)
    return few and _evenly_spaced(rows, lifted) and has_function("qg_row_lifts")


def each_times(rows: Float[Tensor, "n x d"], matrix: Float[Tensor, "d r"]) -> Float[Tensor, "n x r"]:
    """Compute rows_n · matrix, each row by itself and in the order of its terms."""
    samples, each, length = rows.shape
    width = matrix.shape[1]
    padded = matrix if width == WIDEST and matrix.is_contiguous() else rows.new_zeros(length, WIDEST)
    if padded is not matrix:
        padded[:, :width] = matrix
    out = rows.new_empty(samples, each, width)
    function("qg_row_times")(
        rows.data_ptr(),
        _apart(rows),
        samples * each,
        length,
        padded.data_ptr(),
        width,
        out.data_ptr(),
        level_number(),
        torch.get_num_threads(),
    )
    return out


def lifted_rows(
    rows: Float[Tensor, "n x d"], thin: Float[Tensor, "n x r"], lifted: Float[Tensor, "r d"], scale: float
) -> Float[Tensor, "n x d"]:
    """Compute scale·rows_n + thin_n · lifted, each row by itself and in the order of its terms."""
    samples, each, length = rows.shape
    lifted = lifted.contiguous()
    out = rows.new_empty(samples, each, length)
    function("qg_row_lifts")(
        rows.data_ptr(),
        _apart(rows),
        samples * each,
        length,
        thin.data_ptr(),
        lifted.data_ptr(),
        thin.shape[2],
        scale,
        out.data_ptr(),
        level_number(),
        torch.get_num_threads(),
    )
    return out


def _evenly_spaced(rows: Tensor, matrix: Tensor) -> bool:
    samples, each, _ = rows.shape
    between = rows.stride(0) if each == 1 else rows.stride(1)
    even = rows.stride(2) == 1 and (samples == 1 or rows.stride(0) == each * between)
    return even and is_float32(rows, matrix)


def _apart(rows: Tensor) -> int:
    return rows.stride(0) if rows.shape[1] == 1 else rows.stride(1)

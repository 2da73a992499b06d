"""Rounding to a grid, adding whole numbers and scaling, in one pass in C; the reference is `noise.gaussian`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch
from jaxtyping import Int32
from torch import Tensor

from quietgrad.kernels.library import level_number

INPUTS = {torch.float32: 0, torch.float64: 1}
OUTPUTS = {torch.float32: 0, torch.float64: 1, torch.int64: 2}


def served(value: Tensor, target: Tensor, scaled: bool) -> bool:
    """Whether the kernel takes a piece: on the CPU, in precisions it knows, whole numbers where nothing is scaled."""
    return (
        value.device.type == "cpu"
        and value.dtype in INPUTS
        and target.dtype in OUTPUTS
        and (target.dtype == torch.int64) != scaled
        and value.is_contiguous()
    )


def add_steps(
    library: ctypes.CDLL,
    pieces: Sequence[tuple[Tensor, Tensor]],
    drawn: Int32[Tensor, " count"] | None,
    *,
    step: float,
    scale: float | None,
) -> None:
    """scale·(round(x/step) + z) of each piece (x, target), the draws z of all pieces one after the other."""
    count = len(pieces)
    sizes = [value.numel() for value, _ in pieces]
    library.qg_add_steps(
        (ctypes.c_void_p * count)(*(value.data_ptr() for value, _ in pieces)),
        (ctypes.c_void_p * count)(*(target.data_ptr() for _, target in pieces)),
        (ctypes.c_int64 * (count + 1))(*accumulate(sizes, initial=0)),
        (ctypes.c_int32 * count)(*(INPUTS[value.dtype] for value, _ in pieces)),
        (ctypes.c_int32 * count)(*(OUTPUTS[target.dtype] for _, target in pieces)),
        ctypes.c_int64(count),
        None if drawn is None else ctypes.c_void_p(drawn.data_ptr()),
        ctypes.c_double(step),
        ctypes.c_double(1.0 if scale is None else scale),
        level_number(),
        torch.get_num_threads(),
    )

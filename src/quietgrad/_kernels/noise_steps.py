"""A sum plus noise in whole steps, rounded, added and scaled in one pass in C; the reference is `_noise.gaussian`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Int32
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import function

INPUTS = {torch.float32: 0, torch.float64: 1}
OUTPUTS = {torch.float32: 0, torch.float64: 1, torch.int64: 2}

Piece = tuple[Tensor, Tensor]
"""Numbers of a sum, and where what is released of them is written."""


def takes_pieces(pieces: Sequence[Piece], *_: Any, scale: float | None, **__: Any) -> bool:
    """Tell whether the kernel knows all precisions; whole numbers are written where nothing is scaled."""
    return all(
        value.device.type == "cpu"
        and value.dtype in INPUTS
        and target.dtype in OUTPUTS
        and (target.dtype == torch.int64) == (scale is None)
        and value.is_contiguous()
        for value, target in pieces
    )


def add_steps(
    pieces: Sequence[Piece], drawn: Int32[Tensor, " count"] | None, *, step: float, scale: float | None
) -> None:
    """Write scale·(round(x/step) + z) of each piece (x, target), the draws z of all pieces one after the other."""
    # All pieces go in one call: a model has hundreds of small parameters, and each call has a fixed cost.
    count = len(pieces)
    sizes = [value.numel() for value, _ in pieces]
    function("qg_add_steps")(
        (ctypes.c_void_p * count)(*[value.data_ptr() for value, _ in pieces]),
        (ctypes.c_void_p * count)(*[target.data_ptr() for _, target in pieces]),
        (ctypes.c_int64 * (count + 1))(*accumulate(sizes, initial=0)),
        (ctypes.c_int32 * count)(*[INPUTS[value.dtype] for value, _ in pieces]),
        (ctypes.c_int32 * count)(*[OUTPUTS[target.dtype] for _, target in pieces]),
        count,
        None if drawn is None else drawn.data_ptr(),
        step,
        1.0 if scale is None else scale,
        level_number(),
        torch.get_num_threads(),
    )

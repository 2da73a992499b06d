"""Kernel gradients of every sample in C, with their norms; the reference is `_gradients.kernel_gradients`."""

from __future__ import annotations

import ctypes

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import address, is_float32, load_library
from quietgrad._kernels.patches import Window
from quietgrad._kernels.rounding import slack


class Movement(ctypes.Structure):
    """`struct movement` of conv_rows.c."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("images", "channels", "height", "width", "outputs", "high", "wide")
        ),
        *((name, ctypes.c_int64 * 2) for name in ("kernel", "stride", "padding", "dilation")),
        ("strides", ctypes.c_int64 * 5),
        ("back", ctypes.c_int64 * 5),
    )


def takes_convolution(inputs: Tensor, backprops: Tensor, window: Window) -> bool:
    """Tell whether the kernel takes a convolution: two-dimensional, one group, float32."""
    return window.groups == 1 and window.dims == 2 and is_float32(inputs, backprops)


def kernel_gradients(
    inputs: Float[Tensor, "n m i h w"], backprops: Float[Tensor, "n m o h2 w2"], window: Window
) -> tuple[Float[Tensor, "n o taps"], Float64[Tensor, " n"]]:
    """Compute all gradients, taps as in `unfold_rows`, and their squared norms.

    The norms are those of the float32 numbers that are returned. Their squares are exact in float64, so the slack for
    float64 sums makes them no smaller than the truth.
    """
    (n, m, channels, height, width), outputs = inputs.shape, backprops.shape[2]
    two, five = ctypes.c_int64 * 2, ctypes.c_int64 * 5
    kernel, stride, padding, dilation = (
        two(*pair) for pair in (window.kernel[2:], window.stride, window.padding, window.dilation)
    )
    # All strides are passed, so no picture has to be copied into another order first.
    movement = Movement(
        m, channels, height, width, outputs, *backprops.shape[3:],
        kernel, stride, padding, dilation, five(*inputs.stride()), five(*backprops.stride()),
    )  # fmt: skip
    rows = torch.empty(n, outputs, window.taps)
    squared = torch.empty(n, dtype=torch.float64)
    failed = load_library().qg_conv_grads(
        ctypes.byref(movement),
        address(inputs),
        address(backprops),
        ctypes.c_int64(n),
        address(rows),
        address(squared),
        level_number(),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError("No memory for the gradients of a convolution.")
    return rows, squared * (1 + slack(torch.float64, rows[0].numel()))

"""Kernel gradients of every sample in C, with their norms; the reference is `gradients.kernel_gradients.by_patches`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.library import address, in_use, level_number


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


def served(inputs: Tensor, backprops: Tensor, groups: int) -> bool:
    """Whether the kernel takes a convolution: two-dimensional, in float32 on the CPU, one group, and it is there."""
    return (
        in_use() is not None
        and groups == 1
        and inputs.dim() == 5
        and all(
            x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() for x in (inputs, backprops)
        )
    )


def conv_rows(
    library: ctypes.CDLL,
    inputs: Float[Tensor, "n m i h w"],
    backprops: Float[Tensor, "n m o h2 w2"],
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Float[Tensor, "n o taps"], Float64[Tensor, " n"]]:
    """All gradients, taps as in `unfold_rows`, and the sums of their squares in float64.

    Args:
        kernel: rows and columns.
    """
    (n, m, channels, height, width), outputs = inputs.shape, backprops.shape[2]
    two, five = ctypes.c_int64 * 2, ctypes.c_int64 * 5
    movement = Movement(
        m, channels, height, width, outputs, *backprops.shape[3:],
        two(*kernel), two(*stride), two(*padding), two(*dilation), five(*inputs.stride()), five(*backprops.stride()),
    )  # fmt: skip
    rows = torch.empty(n, outputs, kernel[0] * kernel[1] * channels)
    squared = torch.empty(n, dtype=torch.float64)
    failed = library.qg_conv_grads(
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
    return rows, squared

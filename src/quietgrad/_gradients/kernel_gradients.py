"""The gradient of every sample's own convolution kernel, formed: by torch's own backward, or by patches."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.patches import Window, from_rows, unfold_rows
from quietgrad._gradients.row_arithmetic import row_squared_norms, slack
from quietgrad._kernels.conv_rows import conv_rows, served
from quietgrad._kernels.library import in_use

IN_CACHE = 1 << 21
"""Bytes of patches that are unfolded at a time."""
FEW_CHANNELS = 4


def form(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """All kernel gradients. torch's grouped backward is slow on few input channels (images)."""
    if window.dims == 2 and window.groups == 1 and window.kernel[1] <= FEW_CHANNELS and len(inputs):
        return from_rows(by_patches(inputs, backprops, window), window).contiguous()
    return grouped(inputs, backprops, window)


def by_patches(
    inputs: Float[Tensor, "n m i h w"], backprops: Float[Tensor, "n m o h2 w2"], window: Window
) -> Float[Tensor, "n o taps"]:
    """All kernel gradients, taps as in `unfold_rows`, a few samples at a time: their patches are still in the cache
    when they are multiplied."""
    outputs = positions_last(backprops)
    formed = outputs.new_empty(len(inputs), window.kernel[0], window.taps)
    step = max(1, IN_CACHE // max(1, outputs.shape[2] * window.taps * inputs.element_size()))
    for start in range(0, len(inputs), step):
        rows = slice(start, start + step)
        torch.bmm(outputs[rows], unfold_rows(inputs[rows], window), out=formed[rows])
    return formed


def directly(
    inputs: Float[Tensor, "n m i h w"], backprops: Float[Tensor, "n m o h2 w2"], window: Window
) -> tuple[Float[Tensor, "n o taps"], Float64[Tensor, " n"]]:
    """What `by_patches` gives, by the C kernel where it serves, and the squared norms, never below the truth."""
    library = in_use()
    if library is None or not served(inputs, backprops, window.groups):
        rows = by_patches(inputs, backprops, window)
        return rows, row_squared_norms(rows)
    rows, squared = conv_rows(
        library,
        inputs,
        backprops,
        window.kernel[2:],
        stride=window.stride,
        padding=window.padding,
        dilation=window.dilation,
    )
    return rows, squared * (1 + slack(torch.float64, rows[0].numel()))


def positions_last(backprops: Float[Tensor, "n m o *space"]) -> Float[Tensor, "n o t"]:
    """A view where m = 1: a transposed copy would cost as much as a product."""
    return backprops.transpose(1, 2).flatten(2)


def positions_first(maps: Float[Tensor, "n m c *space"]) -> Float[Tensor, "n t c"]:
    """All positions of a sample one after the other."""
    return maps.flatten(3).permute(0, 1, 3, 2).reshape(len(maps), -1, maps.shape[2])


def convolve(
    inputs: Float[Tensor, "n m i *space"], kernels: Float[Tensor, "r taps"], window: Window
) -> Float[Tensor, "n m r *space2"]:
    """r other kernels moved over the inputs in the same way."""
    shaped = kernels.reshape(len(kernels), *window.kernel[1:])
    convolved: Tensor = torch.ops.aten.convolution(
        inputs.flatten(0, 1), shaped, None, window.stride, window.padding, window.dilation, False,
        [0] * window.dims, 1,
    )  # fmt: skip
    maps: Tensor = convolved.unflatten(0, inputs.shape[:2])
    return maps


def grouped(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """All kernel gradients from one native backward: the samples become groups of one convolution."""
    n = len(inputs)
    if n == 0:
        return inputs.new_zeros(0, *window.kernel)
    gradient = weight_backward(fold_samples(inputs), fold_samples(backprops), window, n)
    return gradient.reshape(n, *window.kernel)


def fold_samples(x: Float[Tensor, "n m c *space"]) -> Float[Tensor, "m nc *space"]:
    """Samples into channels."""
    return x.transpose(0, 1).flatten(1, 2)


def weight_backward(
    inputs: Float[Tensor, "m ni *space"],
    backprops: Float[Tensor, "m no *space2"],
    window: Window,
    copies: int,
) -> Float[Tensor, "no *rest"]:
    """torch's own weight gradient of `copies` convolutions side by side."""
    kernel = inputs.new_empty(1).expand(copies * window.kernel[0], *window.kernel[1:])
    gradient: Tensor = torch.ops.aten.convolution_backward(
        backprops,
        inputs,
        kernel,
        None,
        window.stride,
        window.padding,
        window.dilation,
        False,
        [0] * window.dims,
        copies * window.groups,
        [False, True, False],
    )[1]
    return gradient

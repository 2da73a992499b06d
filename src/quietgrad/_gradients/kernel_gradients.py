"""The gradient of every sample's own convolution kernel, formed: by torch's own backward, or by patches."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.row_arithmetic import added_up, row_squared_norms, weighted_products
from quietgrad._kernels.patches import Window, from_rows, positions_first, unfold, unfold_rows
from quietgrad._kernels.registry import operation
from quietgrad._kernels.rounding import POSITIONS

IN_CACHE = 1 << 21
"""Bytes of patches that are unfolded at a time."""
FEW_CHANNELS = 4


def form(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """Form all kernel gradients; torch's grouped backward is slow on few input channels (images)."""
    if window.dims == 2 and window.groups == 1 and window.kernel[1] <= FEW_CHANNELS and len(inputs):
        return from_rows(by_patches(inputs, backprops, window), window).contiguous()
    return form_in_groups(inputs, backprops, window)


def by_patches(
    inputs: Float[Tensor, "n m i h w"], backprops: Float[Tensor, "n m o h2 w2"], window: Window
) -> Float[Tensor, "n o taps"]:
    """Form all kernel gradients, taps as in `unfold_rows`, a few samples at a time.

    Their patches are then still in the cache when they are multiplied.
    """
    outputs = positions_last(backprops)
    formed = outputs.new_empty(len(inputs), window.kernel[0], window.taps)
    step = max(1, IN_CACHE // max(1, outputs.shape[2] * window.taps * inputs.element_size()))
    for start in range(0, len(inputs), step):
        rows = slice(start, start + step)
        torch.bmm(outputs[rows], unfold_rows(inputs[rows], window), out=formed[rows])
    return formed


@operation()
def kernel_gradients(
    inputs: Float[Tensor, "n m i h w"], backprops: Float[Tensor, "n m o h2 w2"], window: Window
) -> tuple[Float[Tensor, "n o taps"], Float64[Tensor, " n"]]:
    """Form all kernel gradients, taps as in `unfold_rows`, and their squared norms, never below the truth.

    Checked by: tests/kernels/test_conv_rows.py
    """
    rows = by_patches(inputs, backprops, window)
    return rows, row_squared_norms(rows)


@operation()
def patch_products(
    inputs: Float[Tensor, "n m i *space"],
    backprops: Float[Tensor, "n m o *space2"],
    weights: Float[Tensor, " n"],
    window: Window,
) -> Float[Tensor, "o taps"]:
    """Compute Σ_n w_n Σ_t b_t a_tᵀ, a the patches of a sample, unfolded a few samples at a time.

    torch's own backward would add up all positions of all samples in float32, in an order of its own.

    Checked by: tests/kernels/test_product_sums.py
    """
    b = positions_first(backprops)
    return added_up(
        weighted_products(b[rows], patches_of(inputs[rows], window), weights[rows])
        for rows in _unfolded_at_once(len(inputs), b.shape[1], window.taps * inputs.element_size())
    )


def patches_of(inputs: Float[Tensor, "n m i *space"], window: Window) -> Float[Tensor, "n t taps"]:
    """Unfold patches, in two dimensions with channels last."""
    return (unfold_rows if window.dims == 2 else unfold)(inputs, window)


def _unfolded_at_once(samples: int, positions: int, patch_bytes: int) -> Iterator[slice]:
    """Group samples whose patches are in the cache together: as many as are in one run, or a multiple."""
    # Runs of `rounding` are cut by the number of positions and samples. Parts of whole runs leave these cuts where
    # they would be without parts, and with them the bound on the rounding.
    together = max(1, POSITIONS // max(1, positions))
    step = together * max(1, IN_CACHE // max(1, together * positions * patch_bytes))
    return (slice(start, start + step) for start in range(0, max(1, samples), step))


def positions_last(backprops: Float[Tensor, "n m o *space"]) -> Float[Tensor, "n o t"]:
    """Lay positions last, as a view where m = 1: a transposed copy would cost as much as a product."""
    return backprops.transpose(1, 2).flatten(2)


def convolve(
    inputs: Float[Tensor, "n m i *space"], kernels: Float[Tensor, "r taps"], window: Window
) -> Float[Tensor, "n m r *space2"]:
    """Move r other kernels over the inputs, as the window says."""
    shaped = kernels.reshape(len(kernels), *window.kernel[1:])
    convolved: Tensor = torch.ops.aten.convolution(
        inputs.flatten(0, 1), shaped, None, window.stride, window.padding, window.dilation, False,
        [0] * window.dims, 1,
    )  # fmt: skip
    maps: Tensor = convolved.unflatten(0, inputs.shape[:2])
    return maps


def form_in_groups(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """Form all kernel gradients in one native backward: the samples become groups of one convolution."""
    n = len(inputs)
    if n == 0:
        return inputs.new_zeros(0, *window.kernel)
    # With groups = n, convolution channels of group i see inputs of sample i only. The one kernel gradient that torch
    # then returns holds those of all samples, one after the other.
    gradient = weight_backward(fold_samples(inputs), fold_samples(backprops), window, n)
    return gradient.reshape(n, *window.kernel)


def fold_samples(x: Float[Tensor, "n m c *space"]) -> Float[Tensor, "m nc *space"]:
    """Fold samples into channels."""
    return x.transpose(0, 1).flatten(1, 2)


def weight_backward(
    inputs: Float[Tensor, "m ni *space"],
    backprops: Float[Tensor, "m no *space2"],
    window: Window,
    copies: int,
) -> Float[Tensor, "no *rest"]:
    """Call torch's own weight gradient of `copies` convolutions side by side."""
    # Only the shape of the kernel is read, never its numbers, so that no memory is taken for it.
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

"""Thin products of per-sample gradients with carriers; a block of shape `[o, ...]` is a matrix `[o, i]` here.

A product with r columns is small. It is formed, except where one outer product a sample makes that needless.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.kernel_gradients import convolve, form_in_groups
from quietgrad._gradients.row_arithmetic import each_off, each_times, outer_sums
from quietgrad._gradients.zero import ZeroGrad
from quietgrad._kernels.patches import positions_first


@functools.singledispatch
def times_right(block: BlockGrads, right: Float[Tensor, "r i"]) -> BlockGrads:
    """G_n Rᵀ, of shape `(o, r)`."""
    return DenseGrad(each_times(block.dense().flatten(2), right.T))


@times_right.register(ZeroGrad)
def _zero_times_right(block: ZeroGrad, right: Float[Tensor, "r i"]) -> ZeroGrad:
    return ZeroGrad(block.samples, block.like.new_zeros(block.shape[0], len(right)))


@times_right.register(FactoredGrad)
def _factors_times_right(block: FactoredGrad, right: Float[Tensor, "r i"]) -> BlockGrads:
    assert block.matrix == (block.shape[0], block.shape[1:].numel())
    mapped = each_times(block.a, right.T)
    return FactoredGrad(mapped, block.b) if block.is_outer else DenseGrad(outer_sums(mapped, block.b))


@times_right.register(ConvGrad)
def _convolution_times_right(block: ConvGrad, right: Float[Tensor, "r i"]) -> BlockGrads:
    """R applied to every patch is a convolution of the input with r kernels: nothing is unfolded."""
    if block.window.groups != 1:
        return times_right(block.form(), right)
    maps = convolve(block.inputs, right.to(block.dtype), block.window)
    return DenseGrad(outer_sums(positions_first(maps), positions_first(block.backprops)))


@times_right.register(IndexedGrad)
def _table_times_right(block: IndexedGrad, right: Float[Tensor, "r i"]) -> IndexedGrad:
    return block.with_values(block.values @ right.T.to(block.dtype))


@functools.singledispatch
def times_left(block: BlockGrads, left: Float[Tensor, "o r"]) -> BlockGrads:
    """Lᵀ G_n, of shape `(r, i)`."""
    return DenseGrad(each_times(block.dense().flatten(2).transpose(1, 2), left).transpose(1, 2))


@times_left.register(ZeroGrad)
def _zero_times_left(block: ZeroGrad, left: Float[Tensor, "o r"]) -> ZeroGrad:
    return ZeroGrad(block.samples, block.like.new_zeros(left.shape[1], block.shape[1:].numel()))


@times_left.register(FactoredGrad)
def _factors_times_left(block: FactoredGrad, left: Float[Tensor, "o r"]) -> BlockGrads:
    assert block.matrix == (block.shape[0], block.shape[1:].numel())
    mapped = each_times(block.b, left)
    return FactoredGrad(block.a, mapped) if block.is_outer else DenseGrad(outer_sums(block.a, mapped))


@times_left.register(ConvGrad)
def _convolution_times_left(block: ConvGrad, left: Float[Tensor, "o r"]) -> BlockGrads:
    """The gradient of r kernels from the output gradients combined by Lᵀ."""
    if block.window.groups != 1:
        return times_left(block.form(), left)
    combined = torch.einsum("nmo...,or->nmr...", block.backprops, left.to(block.dtype))
    window = block.window.with_outputs(left.shape[1])
    return DenseGrad(form_in_groups(block.inputs, combined.contiguous(), window).flatten(2))


@times_left.register(IndexedGrad)
def _table_times_left(block: IndexedGrad, left: Float[Tensor, "o r"]) -> DenseGrad:
    """Table rows weighted by their entry of L, one carrier at a time: the memory of the values, r times over."""
    touched = left.to(block.dtype)[block.ids]
    rows = block.values.new_zeros(block.samples, left.shape[1], block.values.shape[1])
    for carrier in range(left.shape[1]):
        rows[:, carrier].index_add_(0, block.owner, touched[:, carrier, None] * block.values)
    return DenseGrad(rows)


@functools.singledispatch
def off_rows(block: BlockGrads, right: Float[Tensor, "r i"]) -> BlockGrads:
    """G_n (I − RᵀR): what is left of each row of the matrix outside the span of R."""
    return DenseGrad(each_off(block.dense().flatten(2), right))


@off_rows.register(ZeroGrad)
def _zero_off_rows(block: ZeroGrad, _right: Float[Tensor, "r i"]) -> ZeroGrad:
    return ZeroGrad(block.samples, block.like.new_zeros(block.shape[0], block.shape[1:].numel()))


@off_rows.register(FactoredGrad)
def _factors_off_rows(block: FactoredGrad, right: Float[Tensor, "r i"]) -> FactoredGrad:
    return FactoredGrad(each_off(block.a, right), block.b)

"""Products of per-sample gradient matrices G_n with carriers, each in the cheapest form its gradient allows.

A product with r columns or rows is small, so it is formed (memory O(n·r·d)) unless one outer product per sample makes
even that needless. Every sample is multiplied on its own (`bmm`), so that its row does not depend on who else is in the
batch, not even in the last bit: where huge tokens cancel, the last bits are all there is.
"""

from __future__ import annotations

from dataclasses import replace
from functools import singledispatch

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.convolution import ConvGrad, grouped
from quietgrad.gradients.dense import DenseGrad, ZeroGrad
from quietgrad.gradients.factored import FactoredGrad, form
from quietgrad.gradients.indexed import IndexedGrad
from quietgrad.representations.low_rank.matrices import matrix_shape


@singledispatch
def times_right(block: BlockGrads, right: Float[Tensor, "r i"]) -> BlockGrads:
    """G_n Rᵀ, of shape `(o, r)`."""
    return DenseGrad(_each(block.dense().flatten(2), right.T))


@singledispatch
def times_left(block: BlockGrads, left: Float[Tensor, "o r"]) -> BlockGrads:
    """Lᵀ G_n, of shape `(r, i)`."""
    return DenseGrad(_each(block.dense().flatten(2).transpose(1, 2), left).transpose(1, 2))


def off_rows(block: BlockGrads, right: Float[Tensor, "r i"]) -> BlockGrads:
    """G_n (I − RᵀR): what is left of each row outside the span of R."""
    if isinstance(block, FactoredGrad):
        return FactoredGrad(_off(block.a, right), block.b)
    return DenseGrad(_off(block.dense(), right))


@times_right.register
def _(block: FactoredGrad, right: Tensor) -> BlockGrads:
    assert block.matrix == matrix_shape(block.shape)
    mapped = _each(block.a, right.T)
    return FactoredGrad(mapped, block.b) if block.a.shape[1] == 1 else DenseGrad(form(mapped, block.b))


@times_left.register
def _(block: FactoredGrad, left: Tensor) -> BlockGrads:
    assert block.matrix == matrix_shape(block.shape)
    mapped = _each(block.b, left)
    return FactoredGrad(block.a, mapped) if block.a.shape[1] == 1 else DenseGrad(form(block.a, mapped))


@times_right.register
def _(block: ConvGrad, right: Tensor) -> BlockGrads:
    """R applied to every patch is a convolution of the input with r kernels: nothing is unfolded."""
    window = block.window
    if window.groups != 1:
        return DenseGrad(_each(block.dense().flatten(2), right.T))
    n, m = block.inputs.shape[:2]
    kernels = right.to(block.inputs.dtype).reshape(len(right), *window.kernel[1:])
    maps = torch.ops.aten.convolution(
        block.inputs.flatten(0, 1), kernels, None, window.stride, window.padding, window.dilation, False,
        [0] * len(window.stride), 1,
    )  # fmt: skip
    return DenseGrad(form(_positions(maps.unflatten(0, (n, m))), _positions(block.backprops)))


@times_left.register
def _(block: ConvGrad, left: Tensor) -> BlockGrads:
    """The gradient of r kernels from the output gradients combined by Lᵀ."""
    window = block.window
    if window.groups != 1:
        return DenseGrad(_each(block.dense().flatten(2).transpose(1, 2), left).transpose(1, 2))
    rank = left.shape[1]
    combined = torch.einsum("nmo...,or->nmr...", block.backprops, left.to(block.backprops.dtype))
    narrow = replace(window, kernel=torch.Size((rank, *window.kernel[1:])))
    return DenseGrad(grouped(block.inputs, combined.contiguous(), narrow).flatten(2))


@times_right.register
def _(block: IndexedGrad, right: Tensor) -> BlockGrads:
    values = block.values @ right.T.to(block.values.dtype)
    return IndexedGrad(block.ids, block.owner, values, samples=block.samples, table=block.shape[0])


@times_left.register
def _(block: IndexedGrad, left: Tensor) -> BlockGrads:
    """Σ of table rows weighted by their entry of L, one carrier at a time: the memory of the values, r times over."""
    touched = left.to(block.values.dtype)[block.ids]
    rows = block.values.new_zeros(block.samples, left.shape[1], block.values.shape[1])
    for carrier in range(left.shape[1]):
        rows[:, carrier].index_add_(0, block.owner, touched[:, carrier, None] * block.values)
    return DenseGrad(rows)


@times_right.register
def _(block: ZeroGrad, right: Tensor) -> BlockGrads:
    return ZeroGrad(block.samples, right.new_zeros(block.shape[0], len(right)))


@times_left.register
def _(block: ZeroGrad, left: Tensor) -> BlockGrads:
    return ZeroGrad(block.samples, left.new_zeros(left.shape[1], block.shape[1:].numel()))


def _each(rows: Float[Tensor, "n x d"], matrix: Float[Tensor, "d r"]) -> Float[Tensor, "n x r"]:
    return torch.bmm(rows, matrix.to(rows.dtype).expand(len(rows), *matrix.shape))


def _off(rows: Float[Tensor, "n x i"], right: Float[Tensor, "r i"]) -> Float[Tensor, "n x i"]:
    return rows - _each(_each(rows, right.T), right)


def _positions(maps: Float[Tensor, "n m c *space"]) -> Float[Tensor, "n t c"]:
    return maps.flatten(3).permute(0, 1, 3, 2).reshape(len(maps), -1, maps.shape[2])

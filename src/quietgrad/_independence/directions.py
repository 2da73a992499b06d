"""Inner products of per-sample gradients with a random direction, without forming either.

The direction of a matrix is D = Σ_k u_k v_kᵀ/√K with Gaussian u and v. A gradient G = Σ_t b_t a_tᵀ then has

    ⟨G, D⟩ = Σ_t Σ_k (u_k·b_t)(v_k·a_t)/√K,

which takes t·K·(o + i) multiplications in the place of t·o·i. Any other gradient has another inner product with
probability 1, whatever the rank K. A larger one makes it less likely that a difference is found to be small.

Checked by: tests/independence/test_directions.py
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.tied import TiedGrad
from quietgrad._gradients.zero import ZeroGrad
from quietgrad._representations.subspace.projections import project

RANK = 4
AT_ONCE = 1 << 20
"""Numbers of factors that are widened to float64 at a time."""


class Direction(NamedTuple):
    """A direction of a parameter, as the factors of a matrix with a row for each of its first dimension."""

    left: Float64[Tensor, "o k"]
    right: Float64[Tensor, "i k"]

    @classmethod
    def draw(cls, shape: torch.Size, device: torch.device, generator: torch.Generator) -> Direction:
        """Draw one; a vector is a matrix of one column and one term."""
        rows = shape[0] if shape else 1
        if len(shape) < 2:
            vector = torch.randn(rows, 1, generator=generator, dtype=torch.float64)
            return cls(vector.to(device), torch.ones(1, 1, dtype=torch.float64, device=device))
        left = torch.randn(rows, RANK, generator=generator, dtype=torch.float64) / math.sqrt(RANK)
        right = torch.randn(shape[1:].numel(), RANK, generator=generator, dtype=torch.float64)
        return cls(left.to(device), right.to(device))

    def formed(self, like: BlockGrads) -> Float[Tensor, "*shape"]:
        """Return the direction in the shape and precision of gradients."""
        return (self.left @ self.right.T).reshape(like.shape).to(like.dtype)


@functools.singledispatch
def along(block: BlockGrads, direction: Direction) -> Float64[Tensor, " n"]:
    """Return ⟨g_n, D⟩ for each sample; row n depends on sample n alone."""
    return project(block, direction.formed(block)[None])[:, 0]


@along.register(ZeroGrad)
def _along_zero(block: ZeroGrad, direction: Direction) -> Float64[Tensor, " n"]:
    return direction.left.new_zeros(block.samples)


@along.register(FactoredGrad)
def _along_factored(block: FactoredGrad, direction: Direction) -> Float64[Tensor, " n"]:
    if (len(direction.left), len(direction.right)) != block.matrix:
        return project(block, direction.formed(block)[None])[:, 0]
    few = max(1, AT_ONCE // max(1, block.a[:1].numel() + block.b[:1].numel()))
    parts = [
        ((b.double() @ direction.left) * (a.double() @ direction.right)).sum((1, 2))
        for a, b in zip(block.a.split(few), block.b.split(few), strict=True)
    ]
    return torch.cat(parts)


@along.register(IndexedGrad)
def _along_table(block: IndexedGrad, direction: Direction) -> Float64[Tensor, " n"]:
    entries = ((block.values.double() @ direction.right) * direction.left[block.ids]).sum(1)
    return entries.new_zeros(block.samples).index_add_(0, block.owner, entries)


@along.register(TiedGrad)
def _along_tied(block: TiedGrad, direction: Direction) -> Float64[Tensor, " n"]:
    return along(block.table, direction) + along(block.matrix, direction)


@along.register(ConvGrad)
def _along_kernels(block: ConvGrad, direction: Direction) -> Float64[Tensor, " n"]:
    """Convolve with D: ⟨G_n, D⟩ = ⟨conv(x_n, D), b_n⟩; a few samples at a time, as both are widened to float64."""
    kernel, window = direction.formed(block), block.window
    few = max(1, AT_ONCE // max(1, block.inputs[:1].numel() + block.backprops[:1].numel()))
    parts = []
    for inputs, backprops in zip(block.inputs.split(few), block.backprops.split(few), strict=True):
        convolved = torch.convolution(
            inputs.flatten(0, 1),
            kernel,
            None,
            window.stride,
            window.padding,
            window.dilation,
            False,
            (0,) * window.dims,
            window.groups,
        )
        products = convolved.double().reshape(len(inputs), -1) * backprops.double().reshape(len(inputs), -1)
        parts.append(products.sum(1))
    return torch.cat(parts)

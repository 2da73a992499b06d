"""Second moments of what each layer was given, and of its output gradients, from blocks of public gradients."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.tied import TiedGrad

Factors = tuple[Float[Tensor, "n t i"], Float[Tensor, "n t o"]]


@dataclass(frozen=True)
class LayerMoments:
    """Sums over probes and positions, for one matrix `[o, i]`.

    Args:
        inputs: Σ a aᵀ; with a bias, a has a 1 at its end. Of a table, how often each row was read.
        outputs: Σ b bᵀ.
        with_bias: whether the bias of the layer is the last column of the matrix.
        swapped: whether inputs are on the left, as in GPT-2's layers `[i, o]`.
    """

    inputs: Float64[Tensor, "i ..."]
    outputs: Float64[Tensor, "o o"]
    with_bias: bool = False
    swapped: bool = False

    def __add__(self, other: LayerMoments) -> LayerMoments:
        same = (self.with_bias, self.swapped) == (other.with_bias, other.swapped)
        # One odd chunk shows that the bias is not the layer's own: all are then taken without it.
        mine, theirs = (self, other) if same else (self.without_bias(), other.without_bias())
        return LayerMoments(
            mine.inputs + theirs.inputs, mine.outputs + theirs.outputs, mine.with_bias, mine.swapped
        )

    def without_bias(self) -> LayerMoments:
        """The same for the matrix alone, inputs on the right."""
        inputs = self.inputs[:-1, :-1] if self.with_bias else self.inputs
        return LayerMoments(self.outputs, inputs) if self.swapped else LayerMoments(inputs, self.outputs)


@functools.singledispatch
def measure(block: BlockGrads, _bias: BlockGrads | None) -> LayerMoments:
    """Compute the moments of one chunk of probes; rows that have no factors are formed.

    Args:
        block: of a matrix `[o, ...]`.
        _bias: of the bias that its layer may have.
    """
    rows = block.dense().double()
    if rows.dim() == 2:  # coordinates: each has its own scale, as if it were a row of a table
        return LayerMoments(rows.square().sum(0), rows.new_zeros(0, 0))
    rows = rows.flatten(2)
    return LayerMoments(torch.einsum("noi,noj->ij", rows, rows), torch.einsum("noi,npi->op", rows, rows))


@measure.register(FactoredGrad)
def _measure_factors(block: FactoredGrad, bias: BlockGrads | None) -> LayerMoments:
    a, b = block.factors()
    if bias is not None and _is_sum_of(bias, b):
        return LayerMoments(_second_moment(_append_one(a)), _second_moment(b), with_bias=True)
    swapped = bias is not None and _is_sum_of(bias, a)
    return LayerMoments(
        _second_moment(b if swapped else a), _second_moment(a if swapped else b), swapped=swapped
    )


@measure.register(ConvGrad)
def _measure_patches(block: ConvGrad, bias: BlockGrads | None) -> LayerMoments:
    if block.window.groups == 1:
        return _measure_factors(block.as_factored(), bias)
    return measure.dispatch(BlockGrads)(block, bias)


@measure.register(IndexedGrad)
def _count_rows(block: IndexedGrad, _bias: BlockGrads | None) -> LayerMoments:
    """A table's inputs are one-hot: their second moment is how often each row is read."""
    counts = torch.bincount(block.ids, minlength=block.shape[0]).double()
    return LayerMoments(counts, _second_moment(block.values[:, None]))


@measure.register(TiedGrad)
def _count_rows_of_tied(block: TiedGrad, bias: BlockGrads | None) -> LayerMoments:
    return _count_rows(block.table, bias)


def _append_one(a: Float[Tensor, "n t i"]) -> Float[Tensor, "n t i1"]:
    return torch.cat([a, a.new_ones(*a.shape[:2], 1)], 2)


def _second_moment(a: Float[Tensor, "n t i"]) -> Float64[Tensor, "i i"]:
    flat = a.flatten(0, 1).double()
    return flat.T @ flat


def _is_sum_of(bias: BlockGrads, b: Float[Tensor, "n t o"]) -> bool:
    """Whether the bias is added to the layer's output: its gradient is Σ_t b_t then. Of public numbers only."""
    if bias.is_zero or bias.shape != b.shape[2:]:
        return False
    total, error = b.sum(1), b.abs().sum(1)
    return bool(((bias.dense() - total).abs() <= 1e-4 * error + 1e-30).all())

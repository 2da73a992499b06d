"""Second moments of what each layer was given, and of its output gradients, from blocks of public gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
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


@dataclass(frozen=True)
class ChunkMoments:
    """The same sums, before it is known whether the bias is the layer's own: a device is asked once for all layers.

    Args:
        inputs: Σ a aᵀ, with a 1 at the end of a if `has_one`.
        has_one: whether there is a bias that may be the last column.
        adds_bias: whether the bias's gradients are Σ_t b_t, in all chunks.
        swaps: whether they are Σ_t a_t instead.
    """

    inputs: Float64[Tensor, "i ..."]
    outputs: Float64[Tensor, "o o"]
    has_one: bool
    adds_bias: Bool[Tensor, ""]
    swaps: Bool[Tensor, ""]

    def __add__(self, other: ChunkMoments) -> ChunkMoments:
        # One odd chunk shows that the bias is not the layer's own: all are then taken without it.
        has_one = self.has_one and other.has_one
        inputs = [each.inputs if has_one else each.inputs_alone for each in (self, other)]
        return ChunkMoments(
            inputs[0] + inputs[1],
            self.outputs + other.outputs,
            has_one,
            self.adds_bias & other.adds_bias,
            self.swaps & other.swaps,
        )

    @property
    def inputs_alone(self) -> Float64[Tensor, "i i"]:
        """Σ a aᵀ without the 1."""
        return self.inputs[:-1, :-1] if self.has_one else self.inputs

    def decide(self) -> LayerMoments:
        """Ask how the bias belongs to the layer."""
        if self.has_one and bool(self.adds_bias):
            return LayerMoments(self.inputs, self.outputs, with_bias=True)
        if bool(self.swaps):
            return LayerMoments(self.outputs, self.inputs_alone, swapped=True)
        return LayerMoments(self.inputs_alone, self.outputs)


def decide_all(found: Mapping[str, ChunkMoments]) -> dict[str, LayerMoments]:
    """Decide for all layers. Matrices come to the CPU in one download, vectors stay where they are."""
    vectors = {name: LayerMoments(m.inputs, m.outputs) for name, m in found.items() if m.inputs.dim() == 1}
    matrices = {name: m for name, m in found.items() if m.inputs.dim() > 1}
    tensors = [x for m in matrices.values() for x in (m.inputs, m.outputs, m.adds_bias, m.swaps)]
    if tensors and tensors[0].device.type != "cpu":
        downloaded = torch.cat([x.double().flatten() for x in tensors]).cpu()
        parts = downloaded.split([x.numel() for x in tensors])
        tensors = [part.view(x.shape).to(x.dtype) for part, x in zip(parts, tensors, strict=True)]
    rows = iter(tensors)
    decided = {
        name: ChunkMoments(next(rows), next(rows), m.has_one, next(rows), next(rows)).decide()
        for name, m in matrices.items()
    }
    return {name: (decided | vectors)[name] for name in found}


@functools.singledispatch
def measure(block: BlockGrads, _bias: BlockGrads | None) -> ChunkMoments:
    """Compute the moments of one chunk of probes; rows that have no factors are formed.

    Args:
        block: of a matrix `[o, ...]`.
        _bias: of the bias that its layer may have.
    """
    rows = block.dense().double()
    if rows.dim() == 2:  # coordinates: each has its own scale, as if it were a row of a table
        return _without_bias(rows.square().sum(0), rows.new_zeros(0, 0))
    rows = rows.flatten(2)
    return _without_bias(torch.einsum("noi,noj->ij", rows, rows), torch.einsum("noi,npi->op", rows, rows))


@measure.register(FactoredGrad)
def _measure_factors(block: FactoredGrad, bias: BlockGrads | None) -> ChunkMoments:
    a, b = block.factors()
    if bias is None or bias.is_zero:
        return _without_bias(_second_moment(a), _second_moment(b))
    adds, swaps = _is_sum_of(bias, b), _is_sum_of(bias, a)
    has_one = adds is not None
    no = torch.zeros((), dtype=torch.bool, device=a.device)
    adds, swaps = no if adds is None else adds, no if swaps is None else swaps
    inputs = _second_moment(_append_one(a) if has_one else a)
    return ChunkMoments(inputs, _second_moment(b), has_one, adds, swaps & ~adds)


@measure.register(ConvGrad)
def _measure_patches(block: ConvGrad, bias: BlockGrads | None) -> ChunkMoments:
    if block.window.groups == 1:
        return _measure_factors(block.as_factored(), bias)
    return measure.dispatch(BlockGrads)(block, bias)


@measure.register(IndexedGrad)
def _count_rows(block: IndexedGrad, _bias: BlockGrads | None) -> ChunkMoments:
    """A table's inputs are one-hot: their second moment is how often each row is read and gets a gradient."""
    # On a device rows of zeros stand for padding, and fill up the list of pairs. They are reads of nothing.
    reads = (block.values != 0).any(1).double()
    counts = reads.new_zeros(block.shape[0]).index_add_(0, block.ids, reads)
    return _without_bias(counts, _second_moment(block.values[:, None]))


@measure.register(TiedGrad)
def _count_rows_of_tied(block: TiedGrad, bias: BlockGrads | None) -> ChunkMoments:
    return _count_rows(block.table, bias)


def _append_one(a: Float[Tensor, "n t i"]) -> Float[Tensor, "n t i1"]:
    return torch.cat([a, a.new_ones(*a.shape[:2], 1)], 2)


def _second_moment(a: Float[Tensor, "n t i"]) -> Float64[Tensor, "i i"]:
    flat = a.flatten(0, 1).double()
    return flat.T @ flat


def _without_bias(inputs: Float64[Tensor, "i ..."], outputs: Float64[Tensor, "o o"]) -> ChunkMoments:
    no = torch.zeros((), dtype=torch.bool, device=inputs.device)
    return ChunkMoments(inputs, outputs, False, no, no)


def _is_sum_of(bias: BlockGrads, b: Float[Tensor, "n t o"]) -> Bool[Tensor, ""] | None:
    """Whether the bias is added to the layer's output: its gradient is Σ_t b_t then. None if shapes say no."""
    if bias.shape != b.shape[2:]:
        return None
    total, error = b.sum(1), b.abs().sum(1)
    return ((bias.dense() - total).abs() <= 1e-4 * error + 1e-30).all()

"""Per-sample gradients of which only some coordinates are kept, without forming the others where that is possible."""

from __future__ import annotations

import dataclasses

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.convolution import ConvGrad
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.indexed import IndexedGrad

Kept = Int[Tensor, " kept"]
"""Sorted positions in a block's flattened coordinates."""


class WholeNormGrad(BlockGrads):
    """The kept coordinates of a block, whose norm is counted over the *whole* block.

    A clip by this norm followed by the sum of the kept coordinates is "clip, then mask": the norm is never below that
    of what is summed, so the clip's sensitivity holds as it is.
    """

    def __init__(self, block: BlockGrads, kept: Kept | None) -> None:
        self.block, self._kept = block, kept

    @property
    def samples(self) -> int:
        return self.block.samples

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.block.shape.numel() if self._kept is None else len(self._kept),))

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self.block.squared_norms()

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, " kept"]:
        total = self.block.weighted_sum(weights).flatten()
        return total if self._kept is None else total[self._kept]

    def dense(self) -> Float[Tensor, "n kept"]:
        rows = self.block.dense().flatten(1)
        return rows if self._kept is None else rows.index_select(1, self._kept)


class MaskedOuterGrad(BlockGrads):
    """Kept entries of G_n = b aᵀ, one position a sample: ‖M⊙G‖² = (b²)ᵀ M (a²), nothing formed."""

    def __init__(self, block: FactoredGrad, kept: Kept) -> None:
        self._block, self._kept = block, kept

    @property
    def samples(self) -> int:
        return self._block.samples

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self._kept),))

    def squared_norms(self) -> Float64[Tensor, " n"]:
        # float64: the square of a small factor underflows in float32 and may meet a large one in the other factor.
        a, b = (factor[:, 0].double().square() for factor in self._block.factors())
        mask = a.new_zeros(b.shape[1] * a.shape[1])
        mask[self._kept] = 1.0
        return ((b @ mask.view(b.shape[1], a.shape[1])) * a).sum(1)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, " kept"]:
        return self._block.weighted_sum(weights).flatten()[self._kept]

    def dense(self) -> Float[Tensor, "n kept"]:
        a, b = (factor[:, 0] for factor in self._block.factors())
        inputs = a.shape[1]
        outputs = torch.div(self._kept, inputs, rounding_mode="floor")
        return a.index_select(1, self._kept - outputs * inputs) * b.index_select(1, outputs)


def mask_block(block: BlockGrads, kept: Kept, rows: Int[Tensor, " rows"] | None) -> BlockGrads:
    """The kept coordinates of a block as one of shape `[kept]`, by the cheapest way its kind allows.

    Args:
        rows: the output channels, if exactly the coordinates of whole channels are kept.
    """
    if len(kept) == block.shape.numel():
        return WholeNormGrad(block, None)
    if rows is not None and isinstance(block, FactoredGrad):
        a, b = block.factors()
        return FactoredGrad(a, b.index_select(2, rows), torch.Size((len(kept),)))
    if rows is not None and isinstance(block, ConvGrad) and block.window.groups == 1:
        kernel = torch.Size((len(rows), *block.window.kernel[1:]))
        window = dataclasses.replace(block.window, kernel=kernel)
        return WholeNormGrad(ConvGrad(block.inputs, block.backprops.index_select(2, rows), window), None)
    if isinstance(block, FactoredGrad) and block.a.shape[1] == 1:
        return MaskedOuterGrad(block, kept)
    if isinstance(block, IndexedGrad):
        return WholeNormGrad(_masked_table(block, kept), kept)
    return DenseGrad(block.dense().flatten(1).index_select(1, kept))


def _masked_table(block: IndexedGrad, kept: Kept) -> IndexedGrad:
    """The touched rows of a table with the coordinates that are not kept set to zero."""
    mask = torch.zeros(block.shape.numel(), dtype=torch.bool, device=block.values.device)
    mask[kept] = True
    values = block.values.masked_fill(~mask.view(block.shape)[block.ids], 0.0)
    return IndexedGrad(block.ids, block.owner, values, samples=block.samples, table=block.shape[0])


def whole_rows(kept: Kept, shape: torch.Size) -> Int[Tensor, " rows"] | None:
    """The output channels whose coordinates are exactly those kept, or None; `kept` is sorted."""
    width = shape[1:].numel()
    if len(shape) < 2 or width == 0 or len(kept) % width:
        return None
    first, last = kept.view(-1, width)[:, 0], kept.view(-1, width)[:, -1]
    if bool((first % width != 0).any()) or bool((last - first != width - 1).any()):
        return None
    return torch.div(first, width, rounding_mode="floor")

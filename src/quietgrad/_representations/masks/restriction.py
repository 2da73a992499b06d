"""The kept coordinates of each kind of block, without forming the others where that is possible."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from quietgrad._gradients.blocks import BlockGrads, DenseGrad, Positions
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.indexed import IndexedGrad
from quietgrad._gradients.row_arithmetic import as_rows
from quietgrad._gradients.zero import ZeroGrad
from quietgrad._kernels.transfer import upload
from quietgrad._representations.masks.restricted import RestrictedOuterGrad, WholeNormGrad

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Kept:
    """The kept coordinates of a block, on its device.

    Args:
        positions: sorted, in the flattened block.
        rows: the output channels that these are, if they are whole channels.
    """

    positions: Positions
    rows: Positions | None

    @classmethod
    def of(cls, positions: Positions, shape: torch.Size, device: torch.device = CPU) -> Kept:
        """Describe positions, which are on the CPU as all public choices are, for a block on a device."""
        rows = whole_rows(positions, shape)
        return cls(upload(positions, device), rows if rows is None else upload(rows, device))

    def __len__(self) -> int:
        return len(self.positions)


@functools.singledispatch
def restrict(block: BlockGrads, kept: Kept) -> BlockGrads:
    """The kept coordinates alone, of shape `(kept,)`."""
    return DenseGrad(as_rows(block.dense()).index_select(1, kept.positions))


@restrict.register(ZeroGrad)
def _restrict_zero(block: ZeroGrad, kept: Kept) -> ZeroGrad:
    return ZeroGrad(block.samples, block.like.new_zeros(len(kept)))


@restrict.register(FactoredGrad)
def _restrict_factors(block: FactoredGrad, kept: Kept) -> BlockGrads:
    """Whole output channels stay factored; single outer products are never formed."""
    if kept.rows is not None:
        return FactoredGrad(block.a, block.b.index_select(2, kept.rows), torch.Size((len(kept),)))
    if block.is_outer:
        return RestrictedOuterGrad(block, block.a[:, 0], block.b[:, 0], kept.positions)
    return restrict(block.form(), kept)


@restrict.register(ConvGrad)
def _restrict_convolution(block: ConvGrad, kept: Kept) -> BlockGrads:
    channels = kept.rows
    if channels is None or block.window.groups != 1:
        return restrict(block.form(), kept)
    window = block.window.with_outputs(len(channels))
    return WholeNormGrad(ConvGrad(block.inputs, block.backprops.index_select(2, channels), window), None)


@restrict.register(IndexedGrad)
def _restrict_table(block: IndexedGrad, kept: Kept) -> WholeNormGrad:
    """The touched rows with the coordinates that are not kept set to zero."""
    mask = torch.zeros(block.shape.numel(), dtype=torch.bool, device=block.device)
    mask.index_fill_(0, kept.positions, True)
    masked = block.values.masked_fill(~mask.view(block.shape)[block.ids], 0.0)
    return WholeNormGrad(block.with_values(masked), kept.positions)


def whole_rows(kept: Positions, shape: torch.Size) -> Positions | None:
    """The output channels whose coordinates are exactly those kept, or None; `kept` is sorted."""
    width = shape[1:].numel()
    if len(shape) < 2 or width == 0 or len(kept) % width:
        return None
    first, last = kept.view(-1, width)[:, 0], kept.view(-1, width)[:, -1]
    if bool((first % width != 0).any()) or bool((last - first != width - 1).any()):
        return None
    return torch.div(first, width, rounding_mode="floor")

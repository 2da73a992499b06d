"""Augmentation multiplicity: several views of a record are one sample, their gradients averaged before the clip."""

from __future__ import annotations

from functools import singledispatch

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.indexed import IndexedGrad
from quietgrad.gradients.stages import BlockwiseGrads


def average_views(grads: BlockwiseGrads, views: int) -> BlockwiseGrads:
    """ḡ_i = (1/K)·Σ_j g_{iK+j}: rows in groups of K consecutive ones become their mean.

    Formal guarantee: a record's K views enter one row, so the clip bounds the record and not each view.
    """
    records = grads.samples // views
    blocks = {name: averaged(block, views) for name, block in grads.blocks.items()}
    return BlockwiseGrads(blocks, records)


@singledispatch
def averaged(block: BlockGrads, views: int) -> BlockGrads:
    """One block's gradients averaged over groups of `views` rows; formed unless a cheaper way is registered."""
    return DenseGrad(block.dense().unflatten(0, (-1, views)).mean(1))


@averaged.register
def _factored(block: FactoredGrad, views: int) -> BlockGrads:
    # Σ_t over the positions of one view becomes Σ_t over those of all its views.
    a, b = (factor.unflatten(0, (-1, views)).flatten(1, 2) for factor in block.factors())
    return FactoredGrad(a, b / views, block.shape)


@averaged.register
def _indexed(block: IndexedGrad, views: int) -> BlockGrads:
    return IndexedGrad(
        block.ids,
        block.owner // views,
        block.values / views,
        samples=block.samples // views,
        table=block.shape[0],
    )

"""Augmentation multiplicity: several views of a record are one sample, their gradients averaged before the clip."""

from __future__ import annotations

from quietgrad.gradients.stages import BlockwiseGrads


def average_views(grads: BlockwiseGrads, views: int) -> BlockwiseGrads:
    """ḡ_i = (1/K)·Σ_j g_{iK+j}: rows in groups of K consecutive ones become their mean.

    Formal guarantee: a record's K views enter one row, so the clip bounds the record and not each view.
    """
    records = grads.samples // views
    blocks = {name: block.averaged(views) for name, block in grads.blocks.items()}
    return BlockwiseGrads(blocks, records)

"""Per-sample gradients in the form that projections are fastest on: formed rows where they are small."""

from __future__ import annotations

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.dense import DenseGrad, ZeroGrad
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.indexed import IndexedGrad
from quietgrad.stages import BlockwiseGrads, PerSampleGrads

FORMED_BYTES = 2**28
"""Rows of one micro-batch are formed once for all that is asked of them, if they fit into this."""


def projectable(grads: PerSampleGrads) -> BlockwiseGrads:
    """The same gradients, formed where each of projection, norm and sum would otherwise form them anew.

    Single outer products (t = 1) and embeddings are never formed: their projections and norms are exact without.
    """
    if not isinstance(grads, BlockwiseGrads):
        return BlockwiseGrads({name: DenseGrad(rows) for name, rows in grads.dense().items()}, grads.samples)
    if _dense_bytes(grads) > FORMED_BYTES:
        return grads
    return BlockwiseGrads({name: _formed(block) for name, block in grads.blocks.items()}, grads.samples)


def held_bytes(grads: BlockwiseGrads) -> int:
    """Memory that keeping these gradients takes."""
    return sum(_block_bytes(block) for block in grads.blocks.values())


def _formed(block: BlockGrads) -> BlockGrads:
    if isinstance(block, DenseGrad | ZeroGrad | IndexedGrad) or _is_outer(block):
        return block
    return DenseGrad(block.dense())


def _is_outer(block: BlockGrads) -> bool:
    if not isinstance(block, FactoredGrad):
        return False
    outputs, inputs = block.matrix
    return block.a.shape[1] == 1 and outputs + inputs < outputs * inputs


def _dense_bytes(grads: BlockwiseGrads) -> int:
    formed = [
        block
        for block in grads.blocks.values()
        if not isinstance(block, IndexedGrad) and not _is_outer(block)
    ]
    return sum(block.samples * block.shape.numel() * 4 for block in formed)


def _block_bytes(block: BlockGrads) -> int:
    if isinstance(block, ZeroGrad):
        return 0
    if isinstance(block, IndexedGrad):
        return block.values.numel() * block.values.element_size()
    if isinstance(block, FactoredGrad):
        return (block.a.numel() + block.b.numel()) * block.a.element_size()
    return block.samples * block.shape.numel() * 4

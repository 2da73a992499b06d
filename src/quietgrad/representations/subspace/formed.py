"""Per-sample gradients in the form that projections are fastest on: formed rows where they are small."""

from __future__ import annotations

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.dense import DenseGrad, ZeroGrad
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.indexed import IndexedGrad
from quietgrad.gradients.stages import BlockwiseGrads, PerSampleGrads

FORMED_BYTES = 2**28
"""Rows of one micro-batch are formed once for all that is asked of them, if they fit into this."""


def projectable(grads: PerSampleGrads) -> BlockwiseGrads:
    """The same gradients, formed where each of projection, norm and sum would otherwise form them anew.

    Single outer products (t = 1) and embeddings are never formed: their projections and norms are exact without.
    """
    if not isinstance(grads, BlockwiseGrads):
        return BlockwiseGrads({name: DenseGrad(rows) for name, rows in grads.dense().items()}, grads.samples)
    loose = {name: block for name, block in grads.blocks.items() if not _is_ready(block)}
    size = sum(block.shape.numel() for block in loose.values())
    if not loose or grads.samples * size * 4 > FORMED_BYTES:
        return grads
    formed: dict[str, BlockGrads] = {name: DenseGrad(block.dense()) for name, block in loose.items()}
    return BlockwiseGrads({**grads.blocks, **formed}, grads.samples)


def held_bytes(grads: BlockwiseGrads) -> int:
    """Memory that keeping these gradients takes."""
    return sum(_block_bytes(block) for block in grads.blocks.values())


def _is_ready(block: BlockGrads) -> bool:
    return isinstance(block, DenseGrad | ZeroGrad | IndexedGrad) or _is_outer(block)


def _is_outer(block: BlockGrads) -> bool:
    if not isinstance(block, FactoredGrad):
        return False
    outputs, inputs = block.matrix
    return block.a.shape[1] == 1 and outputs + inputs < outputs * inputs


def _block_bytes(block: BlockGrads) -> int:
    if isinstance(block, ZeroGrad):
        return 0
    if isinstance(block, IndexedGrad):
        return block.values.numel() * block.values.element_size()
    if isinstance(block, FactoredGrad):
        return (block.a.numel() + block.b.numel()) * block.a.element_size()
    return block.samples * block.shape.numel() * 4

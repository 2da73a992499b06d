"""Per-sample gradients in the form that projections are fastest on: formed rows where they are small."""

from __future__ import annotations

from quietgrad.gradients.stages import BlockwiseGrads, PerSampleGrads

FORMED_BYTES = 2**28
"""Rows of one micro-batch are formed once for all that is asked of them, if they fit into this."""


def projectable(grads: PerSampleGrads) -> BlockwiseGrads:
    """The same gradients, formed where each of projection, norm and sum would otherwise form them anew.

    Single outer products (t = 1) and embeddings are never formed: their projections and norms are exact without.
    """
    blocks = grads.blocks
    loose = {name: block for name, block in blocks.items() if not block.projects_unformed}
    size = sum(block.shape.numel() for block in loose.values())
    if grads.samples * size * 4 <= FORMED_BYTES:
        blocks = {**blocks, **{name: block.formed() for name, block in loose.items()}}
    return BlockwiseGrads(blocks, grads.samples)


def held_bytes(grads: BlockwiseGrads) -> int:
    """Memory that keeping these gradients takes."""
    return sum(block.kept_bytes for block in grads.blocks.values())

"""What each sample adds to a clipped sum, on its own, in one pass through the clip.

A clip computes norms, then a weighted sum. Given gradients whose "weighted sum" keeps the rows apart, it returns every
row as it clipped it.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.blocks import Blocks, Space
from quietgrad.gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad.mechanism.clipping import Clip


def clipped_rows(clip: Clip, encoded: PerSampleGrads, step: int) -> Blocks:
    """Each row as the clip leaves it: blocks `[n, *shape]`."""
    apart: PerSampleGrads
    if isinstance(encoded, BlockwiseGrads):
        blocks = {name: BlockApart(block) for name, block in encoded.blocks.items()}
        apart = BlockwiseGrads(dict(blocks), encoded.samples)
    else:
        apart = SamplesApart(encoded)
    return clip(apart, step).blocks


class BlockApart(BlockGrads):
    """A block whose weighted rows are not added up."""

    def __init__(self, block: BlockGrads) -> None:
        self._block = block

    @property
    def samples(self) -> int:
        return self._block.samples

    @property
    def shape(self) -> torch.Size:
        return self._block.shape

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._block.squared_norms()

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "n *shape"]:
        return _weighted(self.dense(), weights)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self._block.dense()


class SamplesApart(PerSampleGrads):
    """The same for gradients whose blocks are not independent."""

    def __init__(self, grads: PerSampleGrads) -> None:
        self._grads = grads

    @property
    def samples(self) -> int:
        return self._grads.samples

    @property
    def space(self) -> Space:
        return self._grads.space

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._grads.squared_norms()

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        return {name: _weighted(rows, weights) for name, rows in self.dense().items()}

    def dense(self) -> Blocks:
        return self._grads.dense()


def _weighted(rows: Float[Tensor, "n *shape"], weights: Float[Tensor, " n"]) -> Float[Tensor, "n *shape"]:
    return rows * weights.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))

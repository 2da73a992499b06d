"""What each sample adds to a clipped sum, on its own."""

from __future__ import annotations

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.row_arithmetic import zero_rows
from quietgrad._gradients.stages import PerSampleGrads
from quietgrad._mechanism.clipping import Clip


def clipped_rows(clip: Clip, encoded: PerSampleGrads, step: int) -> Blocks:
    """Each row as the clip leaves it, weights_i · g_i: blocks `[n, *shape]`."""
    weights = clip.weights(encoded, step)
    rows = {}
    for name, block in encoded.dense().items():
        factors = weights[name].to(block.dtype).view(-1, *[1] * (block.dim() - 1))
        rows[name] = zero_rows(block, weights[name] == 0) * factors
    return rows

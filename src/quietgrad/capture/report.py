"""What `explain()` tells about each layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quietgrad.gradients.base import BlockGrads


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One parameter's way through the engine.

    Args:
        way: how norms and sums are computed (outer, ghost, formed, chunked, indexed, dense, zero).
        milliseconds: norm plus sum, as measured when the way was chosen; 0 where there was no choice.
        megabytes: what the gradients of the last batch hold beyond the factors.
    """

    layer: str
    way: str
    milliseconds: float
    megabytes: float


def report(name: str, block: BlockGrads) -> LayerReport:
    """The report of one block."""
    way = getattr(block, "way", type(block).__name__.removesuffix("Grad").lower())
    held = block.samples * math.prod(block.shape) * 4 / 1e6 if way in ("formed", "dense") else 0.0
    return LayerReport(layer=name, way=way, milliseconds=0.0, megabytes=held)

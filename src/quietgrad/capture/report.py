"""What `explain()` tells about each layer."""

from __future__ import annotations

from dataclasses import dataclass

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.indexed import IndexedGrad
from quietgrad.gradients.tuning import Choice, TunableGrads


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One parameter's way through the engine.

    Args:
        way: how norms and sums are computed (outer, ghost, pixels, formed, grouped, patches, chunked, or the only
            one there is: indexed, dense, zero).
        milliseconds: norm plus sum, as measured when the way was chosen; 0 where there was no choice.
        megabytes: what the gradients of the last batch hold beyond the factors.
    """

    layer: str
    way: str
    milliseconds: float
    megabytes: float


def report(name: str, block: BlockGrads, choice: Choice | None) -> LayerReport:
    """The report of one block."""
    if choice is None:
        way, milliseconds = type(block).__name__.removesuffix("Grad").lower(), 0.0
    else:
        way, milliseconds = choice.way, choice.milliseconds
    held = block.held().get(way, 0) if isinstance(block, TunableGrads) else _bytes(block)
    return LayerReport(layer=name, way=way, milliseconds=milliseconds, megabytes=held / 1e6)


def _bytes(block: BlockGrads) -> int:
    if isinstance(block, DenseGrad):
        return block.rows.numel() * block.rows.element_size()
    return block.values.numel() * block.values.element_size() if isinstance(block, IndexedGrad) else 0

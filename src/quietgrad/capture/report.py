"""What `explain()` tells about each layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.dense import DenseGrad
from quietgrad.gradients.tuning import Choice, TunableGrads


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One parameter's way through the engine.

    Args:
        way: how norms and sums are computed (outer, ghost, pixels, formed, grouped, patches, chunked, or the only
            one there is: indexed, dense, zero).
        milliseconds: norm plus sum, as measured when the way was chosen; 0 where there was no choice.
        megabytes: what the gradients of an expected batch hold beyond the factors. Never those of a drawn one: how
            many rows were drawn, and how many different tokens they hold, is private.
    """

    layer: str
    way: str
    milliseconds: float
    megabytes: float


def report(name: str, block: BlockGrads, choice: Choice | None) -> LayerReport:
    """The report of one block, its megabytes those of a single row."""
    if choice is None:
        way, milliseconds = type(block).__name__.removesuffix("Grad").lower(), 0.0
    else:
        way, milliseconds = choice.way, choice.milliseconds
    held = block.held().get(way, 0) / block.samples if isinstance(block, TunableGrads) else _row_bytes(block)
    return LayerReport(layer=name, way=way, milliseconds=milliseconds, megabytes=held / 1e6)


def for_rows(reports: Iterable[LayerReport], rows: float) -> tuple[LayerReport, ...]:
    """Reports of single rows as those of a batch."""
    return tuple(replace(layer, megabytes=rows * layer.megabytes) for layer in reports)


def _row_bytes(block: BlockGrads) -> int:
    return block.shape.numel() * block.rows.element_size() if isinstance(block, DenseGrad) else 0

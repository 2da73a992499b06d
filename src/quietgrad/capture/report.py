"""What `explain()` tells about each layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quietgrad.gradients.base import BlockGrads
from quietgrad.gradients.tuning import Choice


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One parameter's way through the engine.

    Args:
        way: how norms and sums are computed (outer, ghost, pixels, formed, grouped, patches, chunked, or the only
            one there is: indexed, tied, dense, zero).
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
    milliseconds = 0.0 if choice is None else choice.milliseconds
    return LayerReport(layer=name, way=block.way, milliseconds=milliseconds, megabytes=block.row_bytes / 1e6)


def for_rows(reports: Iterable[LayerReport], rows: float) -> tuple[LayerReport, ...]:
    """Reports of single rows as those of a batch."""
    return tuple(replace(layer, megabytes=rows * layer.megabytes) for layer in reports)

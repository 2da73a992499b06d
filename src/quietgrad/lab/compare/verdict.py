"""What a comparison found, in two sentences: what won, by how much beyond the spread, and what ε that saves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from quietgrad.lab.compare.comparison import ComparisonRow
from quietgrad.lab.formatting import method_title

BASELINE = "dp_sgd"


def verdict(rows: Sequence[ComparisonRow]) -> str:
    """The best method at the largest budget against DP-SGD, and the smallest ε at which it equals DP-SGD's best."""
    private = [row for row in rows if 0 < row.target < math.inf]
    largest = max((row.target for row in private), default=0.0)
    there = sorted((row for row in private if row.target == largest), key=lambda row: -row.accuracy)
    baseline = next((row for row in there if row.method == BASELINE), None)
    if baseline is None or len(there) < 2:
        return ""
    best = there[0]
    if best is baseline:
        return f"At ε = {largest:g} nothing is above DP-SGD ({_percent(baseline)})."
    lead = 100 * (best.accuracy - baseline.accuracy)
    spread = 100 * math.hypot(best.std, baseline.std)
    said = (
        f"Best at ε = {largest:g}: {method_title(best.method)}, {_percent(best)} against DP-SGD's "
        f"{_percent(baseline)}, {lead:.1f} points more; the runs themselves vary by {spread:.1f}."
    )
    return f"{said} {_saving(private, best.method)}".strip()


def _saving(private: Sequence[ComparisonRow], winner: str) -> str:
    top = max((row for row in private if row.method == BASELINE), key=lambda row: row.accuracy)
    enough = [row.target for row in private if row.method == winner and row.accuracy >= top.accuracy]
    if not enough or min(enough) >= top.target:
        return ""
    return f"It equals DP-SGD's best (ε = {top.target:g}) at ε = {min(enough):g}."


def _percent(row: ComparisonRow) -> str:
    return f"{100 * row.accuracy:.1f}%"

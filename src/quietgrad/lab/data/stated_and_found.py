"""Whether what is stated of a table fits its test rows, looked at before anything is released.

Formal guarantee: only rows for testing are looked at, which ε does not protect. Private rows decide nothing.
Checked by: tests/tables/test_stated_and_found.py
"""

from __future__ import annotations

import torch
from torch import Tensor

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.parts import Parts
from quietgrad.tables.kinds import MISSING, OTHER

MOST_UNREADABLE = 0.4
"""Part of the test rows without a usable value from which on a column is named."""


def check_test_labels(parts: Parts, label: str) -> None:
    """Refuse test rows on which nothing can be measured.

    Raises:
        DataError: none of them has a label that was stated, or all have the same.
    """
    labels = parts.test.tensors[1]
    known = labels[labels >= 0] if parts.target is None else labels[labels.isfinite()]
    if not len(labels):
        return
    rows, remedy = f"of the {len(labels):,} test rows", "or set data.test = 0 to measure nothing"
    if not len(known):
        raise DataError(
            f"columns.{label}: none {rows} has a label that was stated. Spell the classes as in the file, {remedy}."
        )
    if int(known.unique().numel()) == 1:
        raise DataError(
            f"columns.{label}: all {len(known):,} labels {rows} are the same, so nothing can be measured. Check the "
            f"label's name and classes, set a larger data.test, {remedy}."
        )


def remarks_on_columns(parts: Parts) -> list[str]:
    """Name the columns of which many test rows have no usable value."""
    if parts.schema is None or not len(parts.test):
        return []
    shares = parts.test.tensors[0].float().mean(0)
    found = {part: _shares(parts, shares, part) for part in (MISSING, OTHER)}
    said = {
        MISSING: "have no readable value. If they are not missing, state how they are written",
        OTHER: "have none of its categories. If they should, spell the categories as in the file",
    }
    return [
        f"columns.{name}: {share:.0%} of the test rows {said[part]}."
        for part, columns in found.items()
        for name, share in columns.items()
        if share >= MOST_UNREADABLE
    ]


def _shares(parts: Parts, shares: Tensor, part: str) -> dict[str, float]:
    assert parts.schema is not None
    features = parts.schema.features
    return {
        feature.column: float(share)
        for feature, share in zip(features, torch.atleast_1d(shares), strict=True)
        if feature.part == part
    }

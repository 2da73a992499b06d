"""Labels: the classes of a stated column, or numbers between its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int64
from numpy import ndarray

from quietgrad.tables.kinds import Boolean, Category, Column, Number, Skip, Values

IGNORED = -100
"""The class of a record without a usable label: cross entropy leaves it out."""


def class_names(column: Column) -> tuple[str, ...] | None:
    """Return the stated classes, None for a number.

    Raises:
        ValueError: the column is neither, or has a single class.
    """
    if isinstance(column, Boolean):
        return ("no", "yes")
    if isinstance(column, Category):
        if len(column.values) < 2:
            raise ValueError(f"the label has the single class {column.values[0]!r}: state at least two")
        return column.values
    if isinstance(column, Number):
        return None
    if isinstance(column, Skip):
        raise ValueError("a column that is left out cannot be the label: state categories, boolean or bounds")
    raise ValueError(
        f"a {type(column).__name__.lower()} cannot be the label: state categories, boolean or bounds"
    )


def read_classes(column: Column, values: Values) -> Int64[ndarray, " n"]:
    """Return each label's class, IGNORED where it is missing or was never stated."""
    if isinstance(column, Boolean):
        read = column.read(values)
        return np.where(np.isnan(read), IGNORED, np.nan_to_num(read)).astype(np.int64)
    assert isinstance(column, Category)
    places = column.places(values)
    return np.where(places < len(column.values), places, IGNORED)


def read_targets(column: Any, values: Values) -> Float[ndarray, " n"]:
    """Return numbers clamped to the stated bounds, NaN where a target is missing."""
    assert isinstance(column, Number)
    inside: ndarray = np.clip(column.read(values), column.low, column.high)
    return inside

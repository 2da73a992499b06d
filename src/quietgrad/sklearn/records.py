"""Read records and labels one by one, so that an odd one changes nothing for the others.

numpy looks for one type that holds a whole list. One string among numbers turns all of them into strings, and one
record of another length stops the conversion. Here each record is converted by itself, and one that is no row of
numbers becomes a row of NaN, which contributes nothing to any release.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

IGNORED = -100
"""The label that cross entropy leaves out."""

_WHOLE = 2**53
"""From here on a float stands for several whole numbers."""

_EXACT = 4
"""Bytes of a number up to which float64 holds it exactly; longer ones are rounded to float64 first, from any type."""


def read_rows(X: Any) -> Float[ndarray, "n d"]:
    """Return one row of numbers for each record; NaN throughout where a record is no such row.

    The number of columns is public: that of an array, or the length that most records have, readable or not.
    """
    whole = as_array(X)
    if whole is not None and whole.ndim == 2 and whole.dtype.kind in "biuf":
        return whole if whole.dtype.itemsize <= _EXACT else _double(whole)
    records = X if whole is None else whole
    rows = [_row(record) for record in records]
    width = whole.shape[1] if whole is not None and whole.ndim == 2 else _most_common_length(records)
    nothing = np.full(width, np.nan)
    return np.array([row if row is not None and len(row) == width else nothing for row in rows])


def read_labels(y: Any, classes: Sequence[Any]) -> list[int]:
    """Return each label's place in `classes`, IGNORED for a label that is not among them.

    Raises:
        ValueError: an array of labels has several columns.
    """
    # Also as text: one label that is no number makes strings of a whole column on its way here.
    places = {name: place for place, label in enumerate(classes) for name in (str(label), label)}
    whole = _one_column(y, "label")
    labels = list(y) if whole is None else whole.tolist()
    return [_place(places, label) for label in labels]


def read_numbers(y: Any) -> Float[ndarray, " n"]:
    """Return each record's number, NaN where there is none.

    Raises:
        ValueError: an array of targets has several columns.
    """
    whole = _one_column(y, "target")
    if whole is not None and whole.dtype.kind in "biuf":
        return _double(whole.ravel())
    return np.array([_number_or_nan(entry) for entry in (y if whole is None else whole.ravel().tolist())])


def as_array(values: Any) -> ndarray | None:
    """Return what is an array already; None for a list, in which nobody has looked for a common type yet."""
    if isinstance(values, Sequence):
        return None
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


def _one_column(y: Any, what: str) -> ndarray | None:
    whole = as_array(y)
    if whole is not None and whole.size != len(whole):
        raise ValueError(
            f"Expected one {what} for each record, got an array of shape {whole.shape}. Take one column."
        )
    return whole


def _double(values: ndarray) -> Float[ndarray, "..."]:
    """In float64, without a word about what is beyond it."""
    with np.errstate(over="ignore"):
        return values.astype(np.float64, copy=False)


def _most_common_length(records: Any) -> int:
    """Return how many entries most records have, whatever these are: one record may not decide it."""
    lengths = Counter(length for length in map(_length, records) if length is not None).most_common(1)
    return lengths[0][0] if lengths else 0


def _length(record: Any) -> int | None:
    try:
        shape = np.shape(record)
        return math.prod(shape) if shape else None
    except Exception:  # a list of lists of different lengths, say
        return None


def _row(record: Any) -> Float[ndarray, " d"] | None:
    # Whatever an odd record raises is the record's doing, and neither its kind nor its message may be seen.
    try:
        entries = np.asarray(record)
        if entries.ndim == 0:
            return None
        return np.array([_number(entry) for entry in entries.ravel().tolist()], dtype=np.float64)
    except Exception:
        return None


def _number(entry: Any) -> float:
    """Return a real number, NaN for a missing one.

    Raises:
        Exception: of any kind, for anything else.
    """
    if entry is None or type(entry).__name__ == "NAType":  # pandas.NA, without importing pandas
        return np.nan
    if isinstance(entry, complex | np.complexfloating):
        return float(entry.real) if entry.imag == 0 else _no_number()
    return float(entry)


def _number_or_nan(entry: Any) -> float:
    try:
        return _number(entry)
    except Exception:
        return np.nan


def _no_number() -> float:
    raise ValueError("no real number")


def _place(places: Mapping[Any, int], label: Any) -> int:
    try:
        if isinstance(label, list | tuple | ndarray | Tensor) and np.size(label) == 1:
            label = np.asarray(label).item()  # a column of labels has rows of one
        if label not in places and isinstance(label, str) and abs(float(label)) < _WHOLE:
            label = float(label)  # "1.0" for 1
        return places.get(label, IGNORED)
    except Exception:  # a list, say, which is of no class
        return IGNORED

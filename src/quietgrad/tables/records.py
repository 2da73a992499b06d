"""Columns of a DataFrame, of a mapping of columns, or of a list of records."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.tables.kinds import Values
from quietgrad.tables.values import read_word


def count_records(table: Any) -> int:
    """Return the number of records.

    Raises:
        ValueError: columns of different lengths, or no table at all.
    """
    if isinstance(table, Mapping):
        lengths = {name: len(column) for name, column in table.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"Columns have different lengths: {lengths}. Give one value for each record.")
        return next(iter(lengths.values()), 0)
    if not hasattr(table, "columns") and not isinstance(table, Sequence):
        raise ValueError(
            f"Expected a DataFrame, a mapping of columns or a list of records, got {type(table).__name__}."
        )
    return len(table)


def column_values(table: Any, name: str, records: int) -> Values:
    """Return the values of a column, one for each record.

    A record in a list that has no such entry counts as missing there, whatever the other records have.

    Raises:
        ValueError: a DataFrame or a mapping has no such column, or two of that name.
    """
    if isinstance(table, Mapping) or hasattr(table, "columns"):
        values = _values(table[_key(table, name)])
    else:
        values = [_entry(record, name) for record in table]
    assert len(values) == records
    return values


def number_users(ids: Any) -> Int64[ndarray, " n"]:
    """Number the users from whom records come; each record that names none is a user of its own."""
    values = _values(ids)
    words = [read_word(one) for one in (values.tolist() if isinstance(values, ndarray) else values)]
    number = {word: place for place, word in enumerate(dict.fromkeys(word for word in words if word))}
    free = iter(range(len(number), len(number) + len(words)))
    return np.array([number[word] if word else next(free) for word in words], dtype=np.int64)


def _key(table: Any, name: str) -> Any:
    """Return what a table calls the column of this name."""
    columns = table if isinstance(table, Mapping) else table.columns
    # One look-up, where a list of all names for each column would take seconds for ten thousand of them.
    if (isinstance(table, Mapping) or getattr(columns, "is_unique", False)) and name in columns:
        return name
    keys = list(columns)
    names = [str(key) for key in keys]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"The table has no column {name!r}{guess}. Correct the name or leave it out.")
    if names.count(name) > 1:
        raise ValueError(f"The table has {names.count(name)} columns {name!r}. Rename one of them.")
    return keys[names.index(name)]


def _values(column: Any) -> Values:
    if isinstance(column, list | tuple):
        return column
    # numpy's own types hold one kind of value; pandas' other types go through their Python values.
    if isinstance(getattr(column, "dtype", None), np.dtype) and column.dtype.kind in "biufM":
        whole: ndarray = np.asarray(column)
        return whole
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(column, method):
            values: list[Any] = getattr(column, method)()
            return values
    return list(column)


def _entry(record: Any, name: str) -> Any:
    try:
        return record.get(name)
    except Exception:  # no mapping: a record without entries
        return None

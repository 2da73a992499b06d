"""A user's own table: its rows as numbers, its labels as classes, by what the user states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples
from quietgrad.lab.data.source import Source
from quietgrad.lab.data.table_file import check_column, read_columns
from quietgrad.tables import Column, Number, Schema, Skip, class_names, read_classes, read_targets
from quietgrad.tables.kinds import UNSTATED, Values
from quietgrad.tables.records import number_users

FEWEST = 20
"""Rows, or users where they are protected."""
MOST_FEATURES = 20_000


def read_table(path: Path, schema: Schema, *, label: str, unit: str | None = None) -> Source:
    """Rows by the schema, labels by what is stated of them; one without a usable label contributes nothing.

    Args:
        path: a CSV, TSV, JSONL or Parquet file.
        schema: what is stated of the columns, the label's among them.
        label: the column to predict.
        unit: the column that says whose a record is.
    """
    if label not in (*schema, UNSTATED):
        check_column(path, label, schema)
    classes = stated_classes(schema, label)
    inputs = input_schema(schema, label, unit)
    names = [name for name, column in inputs.items() if not isinstance(column, Skip)]
    table = read_columns(path, [*names, label, *([] if unit is None else [unit])])
    columns = {} if unit is None else {unit: number_users(table[unit])}
    # Where users are protected, the number of their rows is private, and only their own number may decide.
    units = len(table[label]) if unit is None else len(np.unique(columns[unit]))
    _check_enough(path, units, "rows" if unit is None else "users", label, classes or ())
    return Source(
        train=Examples(inputs.encode(table), _labels(schema[label], table[label]), columns),
        test=None,
        num_classes=len(classes or ()),
        normalisation=None,
        classes=classes or (),
        schema=inputs,
        target=_bounds(schema[label]),
        notes="bounds, categories and classes are stated by the user and taken as public",
    )


def _check_enough(path: Path, units: int, many: str, label: str, classes: tuple[str, ...]) -> None:
    if units < FEWEST:
        raise DataError(
            f"{path} has {units} {many}, and nothing private can be learned from fewer than {FEWEST}. Collect more."
        )
    if len(classes) >= units:
        raise DataError(
            f"columns.{label} states {len(classes)} classes for {units} {many}. Predict a label, not an identifier."
        )


def _bounds(column: Column) -> tuple[float, float] | None:
    return (column.low, column.high) if isinstance(column, Number) else None


def _labels(column: Column, values: Values) -> Shaped[ndarray, " n"]:
    """Classes, or numbers scaled to [−1, 1]."""
    if not isinstance(column, Number):
        return read_classes(column, values)
    inside = (read_targets(column, values) - column.low) / (column.high - column.low)
    scaled: ndarray = (2 * inside - 1).astype(np.float32)
    return scaled


def stated_classes(schema: Schema, label: str) -> tuple[str, ...] | None:
    """Return the classes of the label, None where it is a number.

    Raises:
        DataError: nothing or a single class is stated of it.
    """
    if label == UNSTATED:
        raise DataError('data.label = "?" is not stated yet. Name the column to predict.')
    if label not in schema:
        raise DataError(
            f"columns.{label} is not stated, and data.label = {label!r} is the column to predict. State its classes: "
            f'{label} = ["no", "yes"] in [columns], or set data.label.'
        )
    try:
        return class_names(schema[label])
    except ValueError as error:
        raise DataError(f"columns.{label}: {error}.") from None


def input_schema(schema: Schema, label: str, unit: str | None) -> Schema:
    """Return the columns that a model reads."""
    inputs = schema.without(label, *([] if unit is None else [unit]))
    width = len(inputs.features)
    if not width:
        raise DataError(
            f"[columns] states no column to learn from beside the label {label!r}. State one at least."
        )
    if width > MOST_FEATURES:
        raise DataError(
            f"[columns] gives {width:,} features. State 1 to {MOST_FEATURES:,}: leave columns out with "
            '"skip", or name fewer categories.'
        )
    return inputs

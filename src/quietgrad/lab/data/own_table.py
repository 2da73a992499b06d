"""A user's own table: its rows as numbers, its labels as classes, by what the user states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples
from quietgrad.lab.data.source import Source
from quietgrad.lab.data.table_file import read_columns
from quietgrad.tables import Schema, Skip, class_names, read_classes
from quietgrad.tables.kinds import UNSTATED, Values
from quietgrad.tables.values import read_word

FEWEST_ROWS = 20
MOST_FEATURES = 20_000


def read_table(path: Path, schema: Schema, *, label: str, unit: str | None = None) -> Source:
    """Rows by the schema, labels by their stated classes; a record without a usable label contributes nothing.

    Args:
        path: a CSV, TSV, JSONL or Parquet file.
        schema: what is stated of the columns, the label's among them.
        label: the column to predict.
        unit: the column that says whose a record is.
    """
    classes = stated_classes(schema, label)
    inputs = input_schema(schema, label, unit)
    names = [name for name, column in inputs.items() if not isinstance(column, Skip)]
    table = read_columns(path, [*names, label, *([] if unit is None else [unit])])
    rows = len(table[label])
    if rows < FEWEST_ROWS:
        raise DataError(
            f"{path} has {rows} rows, and nothing private can be learned from fewer than {FEWEST_ROWS}. Collect more."
        )
    if len(classes) > rows:
        raise DataError(
            f"columns.{label} states {len(classes)} classes for {rows} rows. Predict a label, not an identifier."
        )
    columns = {} if unit is None else {unit: _users(table[unit])}
    return Source(
        train=Examples(inputs.encode(table), read_classes(schema[label], table[label]), columns),
        test=None,
        num_classes=len(classes),
        normalisation=None,
        classes=classes,
        schema=inputs,
        notes="bounds, categories and classes are stated by the user and taken as public",
    )


def stated_classes(schema: Schema, label: str) -> tuple[str, ...]:
    """Return the classes of the label.

    Raises:
        DataError: nothing, a single class or no classes are stated of it.
    """
    if label == UNSTATED:
        raise DataError('data.label = "?" is not stated yet. Name the column to predict.')
    if label not in schema:
        raise DataError(
            f"columns.{label} is not stated, and data.label = {label!r} is the column to predict. State its classes: "
            f'{label} = ["no", "yes"] in [columns], or set data.label.'
        )
    try:
        classes = class_names(schema[label])
    except ValueError as error:
        raise DataError(f"columns.{label}: {error}.") from None
    if classes is None:
        raise DataError(
            f"columns.{label} is a number, and quietgrad train learns classes. State them as "
            f"{{category = [0, 1]}}; for numbers there is quietgrad.sklearn.PrivateRegressor."
        )
    return classes


def input_schema(schema: Schema, label: str, unit: str | None) -> Schema:
    """Return the columns that a model reads."""
    inputs = schema.without(label, *([] if unit is None else [unit]))
    width = len(inputs.features)
    if not 0 < width <= MOST_FEATURES:
        raise DataError(
            f"[columns] gives {width:,} features. State 1 to {MOST_FEATURES:,}: leave columns out with "
            '"skip", or name fewer categories.'
        )
    return inputs


def _users(values: Values) -> Int64[ndarray, " n"]:
    """Number the users; each record that names none is a user of its own."""
    words = [read_word(value) for value in values]
    number = {word: place for place, word in enumerate(dict.fromkeys(word for word in words if word))}
    free = iter(range(len(number), len(number) + len(words)))
    return np.array([number[word] if word else next(free) for word in words], dtype=np.int64)

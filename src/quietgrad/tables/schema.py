"""The columns of a table, as the user states them, and the matrix that records become."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from quietgrad.tables.kinds import Column, parse_column, refuse_unstated
from quietgrad.tables.records import column_values, count_records


@dataclass(frozen=True)
class Feature:
    """One column of the encoded matrix.

    Args:
        column: the column of the table that it comes from.
        part: "" for the value itself, else a category, "other" or "missing".
    """

    column: str
    part: str

    @property
    def name(self) -> str:
        """`age`, `age:missing`, `ward:icu`."""
        return f"{self.column}:{self.part}" if self.part else self.column


class Schema(Mapping[str, Column]):
    """What is known of a table's columns before anyone looks at their values.

        schema = Schema({"age": [0, 110], "ward": ["er", "icu"], "smoker": "boolean", "notes": "skip"})
        schema.encode(frame)    # float32, one row a record

    Columns that are not named are left out. A missing or unreadable value has a feature of its own, a category that was
    never stated counts as "other", and a number beyond its bounds as the bound.

    Formal guarantee: row i is a function of record i and of this statement. No value stops the encoding or changes the
    row of another record. The statement must be public: bounds and categories read from the records are not.
    Checked by: tests/tables/test_schema.py

    Args:
        columns: what is stated of each column (`parse_column`), in the order of the features.
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        refuse_unstated(columns)
        self._columns = {str(name): parse_column(str(name), stated) for name, stated in columns.items()}

    @classmethod
    def from_toml(cls, path: str | Path) -> Schema:
        """Read the section `[columns]` of a TOML file."""
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content.get("columns"), dict):
            raise ValueError(f"{path} has no section [columns]. Write one with `quietgrad columns`.")
        return cls(content["columns"])

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        # The order counts: it is that of the features.
        return isinstance(other, Schema) and tuple(self.items()) == tuple(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        return f"Schema({self.as_dict()!r})"

    def without(self, *names: str) -> Schema:
        """Return the schema of the other columns, such as those beside the label."""
        return Schema({name: column for name, column in self.items() if name not in names})

    def as_dict(self) -> dict[str, Any]:
        """Return what the constructor reads, in types of JSON and TOML."""
        return {name: column.as_plain() for name, column in self.items()}

    @property
    def features(self) -> tuple[Feature, ...]:
        """The columns of the encoded matrix, known without any record."""
        return tuple(Feature(name, part) for name, column in self.items() for part in column.feature_names())

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(feature.name for feature in self.features)

    def encode(self, table: Any) -> Float[ndarray, "n d"]:
        """Return one float32 row for each record, entries in [−1, 1].

        Args:
            table: a DataFrame, a mapping from names to columns, or a list of mappings, one a record.

        Raises:
            ValueError: a stated column is not in the table, or columns have different lengths.
        """
        records = count_records(table)
        used = {name: column for name, column in self.items() if column.feature_names()}
        blocks = [column.encode(column_values(table, name, records)) for name, column in used.items()]
        return np.concatenate([np.zeros((records, 0), dtype=np.float32), *blocks], axis=1)

"""Rows of a table, from the features that a schema makes of its records."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from quietgrad.features.curves import Blocks
from quietgrad.tables.kinds import MISSING, Date, Number
from quietgrad.tables.schema import Schema


@dataclass(frozen=True)
class FeatureLayout:
    """The features of an encoded record, known before any record is read.

    Args:
        columns: the names of the table's columns, one for each feature.
        parts: a feature's category, "missing", or "" for the value itself.
        is_number: which features are numbers.
    """

    columns: tuple[str, ...]
    parts: tuple[str, ...]
    is_number: tuple[bool, ...]

    @property
    def numbers(self) -> Bool[Tensor, " d"]:
        return torch.tensor(self.is_number, dtype=torch.bool)

    @property
    def names(self) -> list[str]:
        """The columns that have features, once each."""
        return list(dict.fromkeys(self.columns))

    @property
    def flags(self) -> tuple[int, ...]:
        """For each feature, the place of the one that says that its number is missing; −1 if there is none."""
        places = {name: i for i, name in enumerate(self.columns) if self.parts[i] == MISSING}
        pairs = zip(self.columns, self.is_number, strict=True)
        return tuple(places.get(name, -1) if number else -1 for name, number in pairs)

    @classmethod
    def of_array(cls, names: list[str]) -> FeatureLayout:
        """Each column is a number."""
        return cls(tuple(names), ("",) * len(names), (True,) * len(names))

    @classmethod
    def of_schema(cls, schema: Schema) -> FeatureLayout:
        """As the schema lists its features."""
        found = schema.features
        numbers = (isinstance(schema[f.column], Number | Date) and f.part == "" for f in found)
        return cls(tuple(f.column for f in found), tuple(f.part for f in found), tuple(numbers))


class TableRows(nn.Module):
    """`Blocks` of what `Schema.encode` returns: a number whose flag is set becomes a block of zeros.

    Formal guarantee: a fixed function of the one record, given ranks that were released and paid for.
    Checked by: tests/features/test_table_rows.py

    Args:
        layout: of the features.
        ranks: as for `Blocks`.
    """

    flag_of: Tensor

    def __init__(self, layout: FeatureLayout, ranks: Float[Tensor, "m edges"] | None = None) -> None:
        super().__init__()
        self.blocks = Blocks(layout.numbers, len(layout.names), ranks)
        flags = [flag for flag, places in zip(layout.flags, self.blocks.places, strict=True) for _ in places]
        self.register_buffer("flag_of", torch.tensor(flags, dtype=torch.int64), persistent=False)

    @property
    def width(self) -> int:
        """Coordinates of a row."""
        return self.blocks.width

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        # A zero behind the features is the flag of whatever is never missing: its place is −1.
        is_missing = F.pad(x, (0, 1))[:, self.flag_of]
        rows: Tensor = self.blocks(x) * (1 - is_missing)
        return rows

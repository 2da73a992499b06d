"""Rows of a table: what is missing is a block of zeros, and nothing depends on another record."""

from __future__ import annotations

import torch

from quietgrad._linear_probe.ranks import even_ranks, numbers_or_nan
from quietgrad.features.curves import Blocks
from quietgrad.features.table_rows import FeatureLayout, TableRows
from quietgrad.tables import Schema

SCHEMA = Schema({"age": [0, 100], "ward": ["er", "icu"], "smoker": "boolean", "sugar": [50, 300]})
RECORDS = [
    {"age": 30, "ward": "icu", "smoker": "yes", "sugar": 100},
    {"age": None, "ward": "?", "smoker": "", "sugar": 300},
    {"age": 99, "ward": "new", "smoker": 0, "sugar": "unknown"},
    {},
]


def test_flags_are_those_of_numbers() -> None:
    layout = FeatureLayout.of_schema(SCHEMA)
    assert layout.names == list(SCHEMA)
    named = [SCHEMA.feature_names[flag] if flag >= 0 else "" for flag in layout.flags]
    assert dict(zip(SCHEMA.feature_names, named, strict=True)) == {
        "age": "age:missing",
        "age:missing": "",
        "ward:er": "",
        "ward:icu": "",
        "ward:other": "",
        "ward:missing": "",
        "smoker": "",
        "smoker:missing": "",
        "sugar": "sugar:missing",
        "sugar:missing": "",
    }


def test_rows_are_those_of_blocks_with_nan_for_what_is_missing() -> None:
    layout, features = FeatureLayout.of_schema(SCHEMA), torch.from_numpy(SCHEMA.encode(RECORDS))
    marked = numbers_or_nan(layout, features)
    assert marked.isnan().sum() == 4
    for ranks in (None, even_ranks(layout)):
        rows = TableRows(layout, ranks)
        found = rows(features)
        assert found.shape == (len(RECORDS), rows.width)
        assert torch.equal(found, Blocks(layout.numbers, 4, ranks)(marked))
        assert float(found.norm(dim=1).max()) <= 1.0
        # Each row by itself.
        assert torch.equal(torch.cat([rows(one[None]) for one in features]), found)

"""What a table becomes: each value by itself, by what is stated of its column."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

from quietgrad.tables import IGNORED, Schema, class_names, read_classes, read_targets

STATED: dict[str, Any] = {
    "age": [0, 110],
    "ward": ["er", "icu", "none"],
    "smoker": "boolean",
    "admitted": [datetime.date(2015, 1, 1), datetime.date(2024, 12, 31)],
    "sugar": {"number": [0, 400], "unit": "mg/dl"},
    "born": {"date": ["1900-01-01", "2024-12-31"], "format": "%d.%m.%Y"},
    "notes": "skip",
}
RECORDS: list[dict[str, Any]] = [
    {"age": 55, "ward": "icu", "smoker": True, "admitted": "2015-01-01", "sugar": 100.0, "born": "1.1.1900"},
    {"age": "110", "ward": "dialysis", "smoker": "no", "admitted": "2024-12-31T23:59", "born": "31.12.2024"},
    {"age": math.nan, "ward": None, "smoker": "perhaps", "admitted": "soon", "sugar": math.inf, "born": ""},
    {"age": 1e9, "ward": " none ", "smoker": 0, "admitted": datetime.date(1990, 1, 1), "sugar": -5},
]


class Odd:
    """A value that does everything wrong."""

    def __float__(self) -> float:
        raise RuntimeError("odd")

    def __str__(self) -> str:
        raise KeyError("odd")

    def __eq__(self, other: object) -> bool:
        raise MemoryError("odd")

    __hash__ = None  # type: ignore[assignment]


def row(schema: Schema, record: dict[str, Any]) -> dict[str, float]:
    return dict(zip(schema.feature_names, schema.encode([record])[0].tolist(), strict=True))


def test_values_become_what_the_statement_says() -> None:
    schema = Schema(STATED)
    first, second, third, fourth = (row(schema, record) for record in RECORDS)
    assert first["age"] == 0
    assert (first["ward:icu"], first["ward:er"], first["smoker"], first["admitted"]) == (1, 0, 1, -1)
    assert (first["sugar"], first["born"]) == (-0.5, -1)
    assert (second["age"], second["ward:other"], second["smoker"], second["admitted"]) == (1, 1, -1, 1)
    assert (second["sugar"], second["sugar:missing"], second["born"]) == (0, 1, 1)
    assert {name for name, value in third.items() if value} == {
        *(
            "age:missing",
            "ward:missing",
            "smoker:missing",
            "admitted:missing",
            "sugar:missing",
            "born:missing",
        )
    }
    # Beyond the bounds counts as the bound; "none" is a category where it is stated.
    assert (fourth["age"], fourth["ward:none"], fourth["admitted"], fourth["sugar"]) == (1, 1, -1, -1)


def test_every_form_of_a_table_gives_the_same_rows() -> None:
    schema = Schema(STATED)
    rows = schema.encode(RECORDS)
    assert rows.dtype == np.float32
    assert np.abs(rows).max() == 1
    columns = {name: [record.get(name) for record in RECORDS] for name in STATED}
    assert np.array_equal(schema.encode(columns), rows)
    frame = pd.DataFrame(columns).assign(patient_id=range(4))
    assert np.array_equal(schema.encode(frame), rows)
    assert np.array_equal(schema.encode(frame.convert_dtypes()), rows)


def test_columns_of_one_type_are_read_like_single_values() -> None:
    schema = Schema(
        {"age": [0, 110], "day": [datetime.date(2000, 1, 1), datetime.date(2001, 1, 1)], "w": [1, 2, 3]}
    )
    table = {
        "age": np.array([3.5, np.nan, -np.inf, 200.0]),
        "day": np.array(["2000-02-01", "NaT", "1999-01-01", "2000-12-31"], dtype="datetime64[ns]"),
        "w": np.array([1, 2, 3, 4]),
    }
    singly = [{name: column[i] for name, column in table.items()} for i in range(4)]
    singly = [{**record, "day": str(record["day"])} for record in singly]
    assert np.array_equal(schema.encode(table), schema.encode(singly))
    assert np.array_equal(schema.encode(pd.DataFrame(table)), schema.encode(table))


def test_whole_numbers_have_one_spelling_and_codes_stay() -> None:
    column = Schema({"w": [1, 2, "007", True]})["w"]
    places = column.encode([1, 1.0, "1", "1.0", np.int64(1), "007", "7", True, "True"]).argmax(1)
    assert places.tolist() == [0, 0, 0, 0, 0, 2, 4, 3, 3]


@pytest.mark.parametrize(
    "value", [Odd(), [1], {"a": 1}, b"\xff", 10**400, object(), "x" * 100, 1j, pd.NA, pd.NaT]
)
def test_an_odd_value_changes_no_other_record(value: Any) -> None:
    schema = Schema(STATED)
    clean = schema.encode(RECORDS)
    for name in schema:
        records = [*RECORDS[:2], {**RECORDS[0], name: value}, *RECORDS[2:]]
        rows = schema.encode(records)
        assert np.array_equal(np.delete(rows, 2, axis=0), clean)
        assert np.isfinite(rows).all()
    odd_record = schema.encode([*RECORDS, value])
    assert np.array_equal(odd_record[:4], clean)


def test_the_width_depends_on_the_statement_alone() -> None:
    schema = Schema(STATED)
    assert schema.encode([]).shape == (0, len(schema.features))
    assert schema.encode([{}]).shape == (1, len(schema.features))


def test_a_stated_other_takes_what_was_never_stated() -> None:
    schema = Schema({"ward": ["er", "other"]})
    assert schema.feature_names == ("ward:er", "ward:other", "ward:missing")
    assert schema.encode([{"ward": "icu"}]).tolist() == [[0, 1, 0]]


def test_statements_survive_json_and_toml(tmp_path: Path) -> None:
    schema = Schema(STATED)
    again = Schema(json.loads(json.dumps(schema.as_dict())))
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"columns": schema.as_dict()}))
    (tmp_path / "native.toml").write_text("[columns]\nday = [2000-01-01, 2001-01-01]\n")
    for other in (again, Schema.from_toml(tmp_path / "config.toml")):
        assert list(other) == list(schema)
        assert dict(other) == dict(schema)
    assert Schema.from_toml(tmp_path / "native.toml").as_dict() == {
        "day": {"date": ["2000-01-01", "2001-01-01"]}
    }
    assert list(schema.without("age", "ward")) == list(STATED)[2:]


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ([110, 0], r"bounds \[110, 0\] must be finite and the first below the second"),
        ([0, math.inf], "bounds"),
        ([-1e308, 1e308], "bounds"),
        ([], "empty"),
        (["er", "er"], "'er' is stated twice"),
        (["er", ""], "no category"),
        ("?", "nothing is stated yet"),
        ("number", "'number' is no statement"),
        ({"number": [0, 1, 2]}, "3 entries"),
        ({"number": ["0", "1"]}, "no numbers"),
        ({"numbers": [0, 1]}, "a key that it does not take"),
        ({"category": "er"}, "no list"),
        ({"date": ["2015-13-01", "2016-01-01"]}, "month"),
        ([datetime.date(2020, 1, 1), datetime.date(2019, 1, 1)], "in order"),
    ],
)
def test_a_wrong_statement_is_one_line_with_the_remedy(stated: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"columns\.age: .*{said}.* Give \[lowest, highest\]") as caught:
        Schema({"age": stated})
    assert "\n" not in str(caught.value)


def test_all_columns_of_a_skeleton_are_named_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"columns\.age: nothing is stated yet, nor of ward, sugar\. Give \["
    ):
        Schema({"age": "?", "sex": ["f", "m"], "ward": "?", "sugar": "?"})


def test_a_column_that_is_not_there_is_named() -> None:
    schema = Schema({"age": [0, 110]})
    with pytest.raises(ValueError, match=r"no column 'age' \(did you mean 'Age'\?\)"):
        schema.encode({"Age": [1]})
    with pytest.raises(ValueError, match="2 columns 'age'"):
        schema.encode(pd.DataFrame([[1, 2]], columns=["age", "age"]))
    with pytest.raises(ValueError, match="different lengths"):
        schema.encode({"age": [1], "ward": []})
    with pytest.raises(ValueError, match="got ndarray"):
        schema.encode(np.zeros((2, 2)))
    assert schema.encode(pd.DataFrame({0: [1]}).rename(columns={0: "age"})).shape == (1, 2)
    assert Schema({"0": [0, 1]}).encode(pd.DataFrame({0: [1]})).tolist() == [[1, 0]]


def test_labels_are_classes_or_numbers() -> None:
    schema = Schema({"ward": ["er", "icu"], "again": "boolean", "days": [0, 30], "day": ["2020", "2021"]})
    assert class_names(schema["ward"]) == ("er", "icu")
    assert read_classes(schema["ward"], ["icu", "er", "x", None]).tolist() == [1, 0, IGNORED, IGNORED]
    assert class_names(schema["again"]) == ("no", "yes")
    assert read_classes(schema["again"], ["yes", 0, "", "?"]).tolist() == [1, 0, IGNORED, IGNORED]
    assert class_names(schema["days"]) is None
    targets = read_targets(schema["days"], [5, 99, "x"])
    assert targets[:2].tolist() == [5, 30]
    assert math.isnan(targets[2])
    with pytest.raises(ValueError, match="single class 'er'"):
        class_names(Schema({"ward": ["er"]})["ward"])
    with pytest.raises(ValueError, match="a column that is left out cannot be the label"):
        class_names(Schema({"ward": "skip"})["ward"])


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (["2015-01-01", "2024-12-31"], "holds dates in quotes"),
        ([0, "110"], "holds a number in quotes"),
        (["0", 110.5], "holds a number in quotes"),
    ],
    ids=str,
)
def test_bounds_in_quotes_are_no_categories(stated: list[Any], said: str) -> None:
    with pytest.raises(ValueError, match=rf"columns\.x: .* {said}"):
        Schema({"x": stated})
    assert Schema({"x": {"category": stated}}).feature_names[0] == f"x:{stated[0]}"


@pytest.mark.parametrize("stated", [["1", "2"], [1, "unknown"], ["20150101", "20241231"]], ids=str)
def test_two_texts_may_be_categories(stated: list[Any]) -> None:
    assert Schema({"x": stated}).feature_names[:2] == (f"x:{stated[0]}", f"x:{stated[1]}")

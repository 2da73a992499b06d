"""What is stated of a table is compared with its test rows before anything is released, and with nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quietgrad.lab.data import DataError, Parts, load
from quietgrad.lab.data.stated_and_found import remarks_on_columns
from quietgrad.tables import Schema
from tests.tables.patients import CONFIG, patients, write_config, write_csv
from tests.tables.test_table_runs import refused

SCHEMA = Schema({"age": [0, 110], "ward": ["er", "icu", "surgery"], "readmitted": "boolean"})


def parts_of(folder: Path, records: list[dict[str, Any]], schema: Schema = SCHEMA, test: int = 60) -> Parts:
    return load(str(write_csv(folder / "p.csv", records)), columns=schema, label="readmitted", test=test)


def rows_for_testing(folder: Path) -> list[int]:
    """Which of 300 rows are for testing: their age is their number."""
    numbered = [{**record, "age": str(place)} for place, record in enumerate(patients())]
    schema = Schema({"age": [0, 299], "readmitted": "boolean"})
    ages = parts_of(folder, numbered, schema).test.tensors[0][:, 0]
    return ((ages + 1) / 2 * 299).round().int().tolist()


def test_labels_that_no_test_row_has_are_refused_before_anything_is_released(tmp_path: Path) -> None:
    records = [{**one, "readmitted": {"yes": "ja", "no": "nein"}[one["readmitted"]]} for one in patients()]
    config = write_config(tmp_path, write_csv(tmp_path / "p.csv", records))
    line = refused("train", config, "--out", tmp_path / "run")
    assert "columns.readmitted: none of the 60 test rows has a label that was stated" in line
    assert "ja" not in line.split(": ", 2)[2]
    assert not (tmp_path / "run").exists()


def test_a_constant_label_is_refused_by_the_test_rows(tmp_path: Path) -> None:
    records = [{**one, "readmitted": "no"} for one in patients()]
    config = write_config(tmp_path, write_csv(tmp_path / "p.csv", records))
    line = refused("train", config, "--out", tmp_path / "run")
    assert "all 60 labels of the 60 test rows are the same, so nothing can be measured" in line
    assert not (tmp_path / "run").exists()


def test_private_rows_decide_nothing(tmp_path: Path) -> None:
    """One label is enough to be read, and enough to be refused, whatever the private rows have."""
    tested = set(rows_for_testing(tmp_path))
    for private in ("no", "yes", "nonsense"):
        fine = [
            {**one, "readmitted": one["readmitted"] if place in tested else private}
            for place, one in enumerate(patients())
        ]
        assert len(parts_of(tmp_path, fine).private) == 240
        constant = [
            {**one, "readmitted": "no" if place in tested else private}
            for place, one in enumerate(patients())
        ]
        with pytest.raises(DataError, match="are the same, so nothing can be measured"):
            parts_of(tmp_path, constant)
    assert len(parts_of(tmp_path, constant, test=0).private) == 300


def test_a_constant_number_to_predict_is_refused(tmp_path: Path) -> None:
    schema = Schema({"ward": ["er", "icu", "surgery"], "readmitted": {"number": [0, 9]}})
    records = [{**one, "readmitted": str(5 + place % 2)} for place, one in enumerate(patients())]
    assert len(parts_of(tmp_path, records, schema).test) == 60
    with pytest.raises(DataError, match="all 60 labels of the 60 test rows are the same"):
        parts_of(tmp_path, [{**one, "readmitted": "5"} for one in records], schema)


def test_columns_that_are_hardly_read_are_named(tmp_path: Path) -> None:
    records = [
        {**one, "age": one["age"].replace("", ",") if one["age"] else "", "ward": one["ward"].upper()}
        for one in patients()
    ]
    said = remarks_on_columns(parts_of(tmp_path, records))
    assert said == [
        "columns.age: 100% of the test rows have no readable value. If they are not missing, state how they are "
        "written.",
        "columns.ward: 100% of the test rows have none of its categories. If they should, spell the categories as in "
        "the file.",
    ]
    assert remarks_on_columns(parts_of(tmp_path, patients())) == []
    assert remarks_on_columns(parts_of(tmp_path, records, test=0)) == []


def test_dates_in_two_formats_are_named_and_read_where_both_are_stated(tmp_path: Path) -> None:
    records = patients()
    for one in records[::2]:
        one["admitted"] = ".".join(reversed(one["admitted"].split("-")))
    days = {"date": ["2015-01-01", "2024-12-31"]}
    (line,) = remarks_on_columns(
        parts_of(tmp_path, records, Schema({"admitted": days, "readmitted": "boolean"}))
    )
    assert re.match(r"columns\.admitted: \d\d% of the test rows have no readable value", line)
    both = Schema({"admitted": {**days, "format": ["%Y-%m-%d", "%d.%m.%Y"]}, "readmitted": "boolean"})
    parts = parts_of(tmp_path, records, both)
    assert remarks_on_columns(parts) == []
    assert float(parts.private.tensors[0][:, 1].sum() + parts.test.tensors[0][:, 1].sum()) == 0
    assert Schema(both.as_dict()) == both
    text = CONFIG.replace("[2015-01-01, 2024-12-31]", "{{ date = [2015-01-01, 2024-12-31], format = 5 }}")
    assert "columns.admitted: format = 5 is neither" in refused(
        "explain", write_config(tmp_path, tmp_path / "p.csv", text)
    )

"""Tables that cannot work, or look as if: one line with the remedy and nothing counted, or an ordinary run.

What is refused is refused by what the user stated, by the header or by the number of rows, never by a value of one row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietgrad.lab.data import DataError, load
from quietgrad.tables import Schema
from tests.tables.patients import patients, write_config, write_csv
from tests.tables.test_table_runs import refused

SCHEMA = Schema({"age": [0, 110], "ward": ["er", "icu"], "readmitted": "boolean"})


def parts_of(path: Path, schema: Schema = SCHEMA, **options: Any) -> Any:
    return load(str(path), columns=schema, label="readmitted", **{"test": 0, **options})


def test_a_label_that_the_file_does_not_have_is_named(tmp_path: Path) -> None:
    records = [{key: value for key, value in one.items() if key != "readmitted"} for one in patients(40)]
    config = write_config(tmp_path, write_csv(tmp_path / "p.csv", records))
    line = refused("train", config, "--out", tmp_path / "run")
    assert "has no column 'readmitted' (did you mean 'admitted'?). Correct the name, or leave it out" in line
    assert not (tmp_path / "run").exists()


def test_a_label_that_nobody_stated_is_looked_for_in_the_header(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", patients(40))
    schema = Schema({"age": [0, 110], "ward": ["er", "icu"]})
    with pytest.raises(DataError, match=r"no column 'ill'.*; the header has patient_id, age"):
        load(str(path), columns=schema, label="ill", test=0)
    with pytest.raises(DataError, match=r"columns.readmitted is not stated"):
        load(str(path), columns=schema, label="readmitted", test=0)


def test_a_header_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", patients(40))
    path.write_bytes(path.read_bytes().replace(b"ward", b"w\xe4rd", 1))
    with pytest.raises(DataError, match=r"no column 'ward'.* save the file as UTF-8"):
        parts_of(path)


def test_five_rows_are_refused_by_their_number(tmp_path: Path) -> None:
    config = write_config(tmp_path, write_csv(tmp_path / "p.csv", patients(5)))
    line = refused("train", config, "--out", tmp_path / "run")
    assert "has 5 rows, and nothing private can be learned from fewer than 20. Collect more." in line
    assert not (tmp_path / "run").exists()


def test_a_constant_label_is_read_like_any_other(tmp_path: Path) -> None:
    """Whether all rows have one label must not decide whether the file is read: one row could be found out by it."""
    same = [{**record, "readmitted": "no"} for record in patients(40)]
    one_other = [*same[:-1], {**same[-1], "readmitted": "yes"}]
    read = [parts_of(write_csv(tmp_path / "p.csv", records)) for records in (same, one_other)]
    assert read[0].record == read[1].record
    assert [int(parts.private.tensors[1].sum()) for parts in read] == [0, 1]


def test_labels_that_were_never_stated_count_as_none(tmp_path: Path) -> None:
    """A label with as many values as rows: an identifier, of which nothing was stated."""
    records = [{**record, "readmitted": f"R{place}"} for place, record in enumerate(patients(40))]
    parts = parts_of(write_csv(tmp_path / "p.csv", records))
    assert len(parts.private) == 40
    assert parts.private.tensors[1].unique().tolist() == [-100]


def test_one_column_is_enough_and_none_is_too_few(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "p.csv", patients(40))
    assert parts_of(path, Schema({"age": [0, 110], "readmitted": "boolean"})).input_shape == (2,)
    with pytest.raises(DataError, match=r"no column to learn from beside the label"):
        parts_of(path, Schema({"notes": "skip", "readmitted": "boolean"}))


def test_ten_thousand_columns_are_read_and_more_are_refused(tmp_path: Path) -> None:
    names = [f"gene{number}" for number in range(10_001)]
    rows = [",".join(["1"] * len(names) + ["yes" if row % 2 else "no"]) for row in range(20)]
    path = tmp_path / "wide.csv"
    path.write_text("\n".join([",".join([*names, "readmitted"]), *rows]) + "\n")
    stated: dict[str, Any] = {name: [0, 2] for name in names}
    with pytest.raises(DataError, match=r"gives 20,002 features. State 1 to 20,000.*leave columns out"):
        parts_of(path, Schema({**stated, "readmitted": "boolean"}))
    stated.pop(names[-1])
    assert parts_of(path, Schema({**stated, "readmitted": "boolean"})).input_shape == (20_000,)


def test_dates_and_mixed_types_in_a_column_cost_no_row(tmp_path: Path) -> None:
    odd = ["2024-13-45", "31.12.2024", "yesterday", "12", "", "NaN", "2020-02-02"]
    records = [
        {**record, "admitted": odd[n % len(odd)], "age": odd[n % 5]} for n, record in enumerate(patients(40))
    ]
    schema = Schema(
        {"age": [0, 110], "admitted": {"date": ["2015-01-01", "2024-12-31"]}, "readmitted": "boolean"}
    )
    parts = parts_of(write_csv(tmp_path / "p.csv", records), schema)
    assert len(parts.private) == 40
    missing = parts.private.tensors[0][
        :, schema.without("readmitted").feature_names.index("admitted:missing")
    ]
    assert missing.tolist() == [0.0 if n % len(odd) == 6 else 1.0 for n in range(40)]


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "p.csv", patients(40))
    read = Path.read_bytes

    def appended(self: Path) -> bytes:
        content = read(self)
        with self.open("ab") as file:
            file.write(b"P999,50,er,2020-01-01,yes,,yes\n")
        return content

    monkeypatch.setattr(Path, "read_bytes", appended)
    with pytest.raises(DataError, match=r"changed while it was read\. Wait until it is complete"):
        parts_of(path)


def test_a_table_of_thirty_distinct_rows_keeps_all_of_them(tmp_path: Path) -> None:
    records = [patients(30)[number % 30] for number in range(900)]
    parts = parts_of(write_csv(tmp_path / "p.csv", records), test=180)
    assert (len(parts.private), len(parts.test)) == (720, 180)


def test_an_export_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """A byte order mark, CRLF, semicolons, quotes, a line break inside of a cell, spaces around names."""
    lines = ['\ufeffpatient_id; age ;"ward";admitted;smoker;notes;readmitted']
    for number in range(60):
        ward = '"icu; new wing"' if number % 2 else "er"
        lines.append(
            f'P{number};{20 + number};{ward};2020-01-0{1 + number % 9};yes;"two\r\nlines ""quoted""";no'
        )
    path = tmp_path / "sheet.csv"
    path.write_bytes(("\r\n".join(lines) + "\r\n\r\n").encode())
    schema = Schema({"age": [0, 110], "ward": ["er", "icu; new wing"], "readmitted": "boolean"})
    parts = parts_of(path, schema)
    assert len(parts.private) == 60
    names = schema.without("readmitted").feature_names
    rows = {name: parts.private.tensors[0][:, place] for place, name in enumerate(names)}
    assert float(rows["age:missing"].sum() + rows["ward:missing"].sum() + rows["ward:other"].sum()) == 0
    assert float(rows["ward:icu; new wing"].sum()) == 30


@pytest.mark.filterwarnings("ignore:The number of unique classes:UserWarning")
def test_an_identifier_as_label_of_the_classifier_is_refused() -> None:
    sklearn = pytest.importorskip("quietgrad.sklearn")
    X = np.random.default_rng(0).uniform(size=(60, 2))
    with pytest.raises(
        ValueError, match=r"60 different labels for 60 records\. Predict a label, not an identifier"
    ):
        sklearn.PrivateClassifier(bounds=(0, 1)).fit(X, [f"P{n}" for n in range(60)])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_in_a_thousand_is_fitted() -> None:
    sklearn = pytest.importorskip("quietgrad.sklearn")
    X, y = np.random.default_rng(0).uniform(size=(1001, 2)), np.zeros(1001, dtype=int)
    y[7] = 1
    model = sklearn.PrivateClassifier(1.0, bounds=(0, 1), classes=[0, 1], class_weight="balanced").fit(X, y)
    shares = model.predict_proba(X)
    assert np.isfinite(shares).all()
    assert model.privacy_["epsilon"] <= 1.0

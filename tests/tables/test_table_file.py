"""Files of rows: every format the same, and no value that stops the reading or loses a row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from quietgrad.lab.data import DataError, load
from quietgrad.lab.data.table_file import read_columns, read_header
from quietgrad.tables import IGNORED, Schema
from tests.tables.patients import patients, write_csv

RECORDS = patients()
SCHEMA = Schema({"age": [0, 110], "ward": ["er", "icu"], "readmitted": "boolean"})


def written(folder: Path, kind: str) -> Path:
    path = folder / f"patients.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(record) for record in RECORDS) + "\n")
    elif kind == "parquet":
        pytest.importorskip("pyarrow")
        pd.DataFrame(RECORDS).to_parquet(path)
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(write_csv(folder / "plain.csv", RECORDS).read_bytes()))
    else:
        separator = {"csv": ",", "tsv": "\t", "semicolons.csv": ";"}[kind]
        write_csv(path, RECORDS, separator)
    return path


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "tsv", "semicolons.csv", "jsonl", "parquet"])
def test_every_format_gives_the_same_columns(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    assert read_header(path) == list(RECORDS[0])
    columns = read_columns(path, ["age", "notes"])
    assert columns == {name: [record[name] for record in RECORDS] for name in ("age", "notes")}


def as_parts(path: Path, **options: Any) -> Any:
    return load(str(path), columns=SCHEMA, label="readmitted", **{"test": 60, **options})


def test_a_table_becomes_parts_with_names(tmp_path: Path) -> None:
    parts = as_parts(written(tmp_path, "csv"))
    assert parts.sizes == "300 rows: 240 private, 60 for testing (not protected by ε)"
    assert parts.record["sizes"] == parts.sizes
    assert parts.classes == ("no", "yes")
    assert parts.schema is not None
    assert parts.schema.feature_names == (
        "age",
        "age:missing",
        "ward:er",
        "ward:icu",
        "ward:other",
        "ward:missing",
    )
    assert parts.private.tensors[0].shape == (240, 6)
    assert as_parts(written(tmp_path, "csv"), test=0).sizes == "300 rows: all private, none for testing"
    by_user = as_parts(written(tmp_path, "csv"), unit="patient_id", test=30)
    assert by_user.sizes == "120 users private, 60 for testing (not protected by ε)"


ODD_ROWS = [
    b"\xff\xfe,\x00,,\n",
    b'"' + b"x" * 200_000 + b'",1,2,3,4,5,6\n',
    b"only one field\n",
    b"1,2,3,4,5,6,7,8,9,10\n",
    b",,,,,,\n",
    "Ünïcode,∞,∅,—,…,“,”\n".encode(),
]


@pytest.mark.parametrize("odd", ODD_ROWS)
def test_an_odd_row_stays_a_row_and_changes_no_other(tmp_path: Path, odd: bytes) -> None:
    path = written(tmp_path, "csv")
    header, *rows = path.read_bytes().splitlines(keepends=True)
    plain = as_parts(path, test=0)
    path.write_bytes(b"".join([header, *rows[:7], odd, *rows[7:]]))
    parts = as_parts(path, test=0)
    assert len(parts.private) == 301
    for tensor, before in zip(parts.private.tensors, plain.private.tensors, strict=True):
        assert tensor[:7].equal(before[:7])
        assert tensor[8:].equal(before[7:])
    assert parts.private.tensors[1][7] == IGNORED


def test_a_line_that_is_no_json_stays_a_record(tmp_path: Path) -> None:
    path = written(tmp_path, "jsonl")
    plain = as_parts(path, test=0)
    deep = "[" * 100_000
    for odd in ("{", "[1]", '{"age": NaN}', deep):
        path.write_text("\n".join([odd, *(json.dumps(record) for record in RECORDS)]))
        parts = as_parts(path, test=0)
        assert len(parts.private) == 301
        assert parts.private.tensors[0][1:].equal(plain.private.tensors[0])


def test_records_of_nobody_are_users_of_their_own(tmp_path: Path) -> None:
    records = [{**record, "patient_id": ""} if n < 5 else record for n, record in enumerate(RECORDS)]
    parts = as_parts(write_csv(tmp_path / "p.csv", records), unit="patient_id", test=0)
    assert parts.users is not None
    assert len(set(parts.users.tolist())) == 5 + 148


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "has no header"),
        ("age,ward,readmitted\n1,er,yes\n", "has 1 rows, .* fewer than 20. Collect more"),
        ("Age,ward,readmitted\n", r"has no column 'age' \(did you mean 'Age'\?\)"),
        ("age,age,ward,readmitted\n", "has 2 columns 'age'"),
    ],
)
def test_a_bad_header_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "bad.csv").write_text(content)
    with pytest.raises(DataError, match=said) as caught:
        as_parts(tmp_path / "bad.csv")
    assert "\n" not in str(caught.value)


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "csv")
    read = Path.read_bytes

    def growing(self: Path) -> bytes:
        content = read(self)
        with self.open("ab") as file:
            file.write(b"1,2\n")
        return content

    monkeypatch.setattr(Path, "read_bytes", growing)
    with pytest.raises(DataError, match=r"changed while it was read\. Wait until it is complete"):
        as_parts(path)


def test_no_value_stops_the_reader_of_parquet(tmp_path: Path) -> None:
    """A day that Python has no date for, and a text that is no UTF-8, ended in a traceback."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ends = pa.array([0, 1, 3, 4], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 3, [None, ends, pa.py_buffer(b"a\xff\xfeb")])
    far = pa.array([0, 2**30, 1], pa.int32())
    columns = {
        "text": text,
        "day": far.cast(pa.date32()),
        "second": pa.array([0, 2**50, 1], pa.int64()).cast(pa.timestamp("s")),
        "length": pa.array([0, 2**62, 1], pa.int64()).cast(pa.duration("s")),
    }
    path = tmp_path / "odd.parquet"
    parquet.write_table(pa.table(columns), path)
    for name, values in read_columns(path, columns).items():
        assert values[1] is None, name
        assert values[0] is not None, name
        assert values[2] is not None, name


def test_damaged_parquet_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, "parquet")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="no complete Parquet file"):
        as_parts(path)


def test_nothing_stated_of_a_csv_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing is stated of its columns\. Write \[columns\].*data\.text"):
        load(str(written(tmp_path, "csv")), test=60)
    with pytest.raises(DataError, match=r"nothing is stated"):
        load(str(written(tmp_path, "parquet")), test=60, text="notes")


def test_public_rows_may_be_equal_to_private_and_test_rows(tmp_path: Path) -> None:
    few = [{**RECORDS[n % 5], "notes": ""} for n in range(300)]
    other = write_csv(tmp_path / "other.csv", few[:50])
    parts = as_parts(write_csv(tmp_path / "few.csv", few), public=40, public_from=str(other))
    assert (len(parts.private), len(parts.public), len(parts.test)) == (240, 40, 60)


ROWS = [f"P{number},{20 + number},er,yes" for number in range(40)]


def test_a_quote_that_is_never_closed_is_named_with_its_line(tmp_path: Path) -> None:
    lines = ["id,age,ward,readmitted", *ROWS]
    lines[11] = lines[11].replace(",er", ',"er')
    path = tmp_path / "stray.csv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(
        UserWarning, match=r"1 rows go on over 29 lines that look like rows .*first from line 12 on"
    ) as warned:
        read = read_columns(path, ["age"])
    assert len(read["age"]) == 11
    assert len(warned) == 1
    lines[20] = lines[20].replace(",er", ',"er')  # closes it: nine rows are swallowed, the others are read
    path.write_text("\n".join(lines) + "\n")
    with pytest.warns(UserWarning, match="1 rows go on over 9 lines"):
        assert len(read_columns(path, ["age"])["age"]) == 31


@pytest.mark.filterwarnings("error")
def test_line_breaks_inside_of_quotes_are_in_order(tmp_path: Path) -> None:
    path = tmp_path / "quoted.csv"
    rows = [row.replace("er", '"er\nnew, wing\n"') for row in ROWS]
    path.write_text("\r\n".join(["id,age,ward,readmitted", *rows]) + "\r\n")
    assert len(read_columns(path, ["age"])["age"]) == 40


def test_a_file_without_a_header_is_refused_and_its_first_row_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "bare.csv"
    path.write_text("\n".join(ROWS) + "\n")
    with pytest.raises(DataError, match="its first line has none of the 2 stated names") as refused:
        read_columns(path, ["age", "ward"])
    assert "P0" not in str(refused.value)


def test_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_bytes("id,age\n1,2\n".encode("utf-16"))
    for read in (read_header, lambda path: read_columns(path, ["age"])):
        with pytest.raises(DataError, match=r"is UTF-16\. Save it as UTF-8"):
            read(path)

"""Columns of a CSV, TSV, JSONL or Parquet file, whatever its rows hold.

Formal guarantee: what is read of a row depends on that row alone, and whether a file is read depends on its header, not
on its values. A byte that is no UTF-8, a line that is no JSON or a row of another length costs that row its values, and
the row stays. One exception is named by a warning: a quote that is never closed joins its row to the next ones.
Checked by: tests/tables/test_table_file.py
"""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import io
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.files import read_bytes
from quietgrad.lab.errors import nearest

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
SEPARATORS = ",;\t|"


def is_table_file(path: Path) -> bool:
    """Return whether the name is that of a table."""
    return _suffix(path) in SUFFIXES


def is_json_lines(path: Path) -> bool:
    """Return whether a file has one JSON object a line, and no header."""
    return _suffix(path) == ".jsonl"


def read_columns(path: Path, names: Iterable[str]) -> Mapping[str, Sequence[Any]]:
    """Read the columns of these names, one value for each row.

    Raises:
        DataError: a column is not in the header, or twice; the file is damaged or changes.
    """
    wanted = list(dict.fromkeys(names))
    content = read_bytes(path)
    if _suffix(path) == ".parquet":
        return _parquet_columns(path, content, wanted)
    text = _decoded(path, content).replace("\0", "\N{REPLACEMENT CHARACTER}")
    if _suffix(path) == ".jsonl":
        records = [_json_record(line) for line in text.split("\n") if line.strip()]
        return {name: [record.get(name) for record in records] for name in wanted}
    return _csv_columns(path, text, wanted)


def check_column(path: Path, name: str, others: Iterable[str]) -> None:
    """Refuse a name that the header does not have; a JSONL file has none.

    Args:
        others: further names that are stated. A first line that has none of them is no header, and is not shown.
    """
    if not is_json_lines(path):
        _check_names(path, list(dict.fromkeys([name, *others])), read_header(path))


def read_header(path: Path) -> list[str]:
    """Read the names of all columns without any row; of JSONL, those of the first record."""
    if not path.is_file():
        raise DataError(f"{path} does not exist. Check the path.")
    if not is_table_file(path):
        raise DataError(f"{path} is no table. Give a file that ends in {', '.join(SUFFIXES)}, or in .gz.")
    if _suffix(path) == ".parquet":
        return [str(name) for name in _parquet(path, read_bytes(path)).schema_arrow.names]
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        first = _decoded(path, file.readline())
    if _suffix(path) == ".jsonl":
        return [str(name) for name in _json_record(first)]
    return _header(path, first)


def _decoded(path: Path, content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path} is UTF-16. Save it as UTF-8.")
    return content.decode("utf-8-sig", errors="replace")


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def _header(path: Path, text: str) -> list[str]:
    first = text.splitlines()[0] if text.strip() else ""
    names = [name.strip() for name in next(csv.reader([first], delimiter=_separator(path, first)), [])]
    if not any(names):
        raise DataError(f"{path} has no header. Write the names of the columns into its first line.")
    return names


def _separator(path: Path, header: str) -> str:
    """Tab for .tsv; else what separates the names in the header."""
    return "\t" if _suffix(path) == ".tsv" else max(SEPARATORS, key=header.count)


def _csv_columns(path: Path, text: str, wanted: list[str]) -> dict[str, list[Any]]:
    header = _header(path, text)
    _check_names(path, wanted, header)
    separator = _separator(path, text.splitlines()[0])
    lines = list(io.StringIO(text, newline=""))
    with fields_of_any_length():
        _, *rows = _rows(path, lines, separator, len(header))
    there = {
        name: place for place, name in enumerate(header)
    }  # `_check_names` has refused names that stand twice
    places = {name: there[name] for name in wanted}
    return {
        name: [row[place] if place < len(row) else None for row in rows] for name, place in places.items()
    }


def _rows(path: Path, lines: list[str], separator: str, columns: int) -> list[list[str]]:
    """Read rows, and warn where one has taken in lines that look like rows of their own.

    Quoted line breaks are in order. A continuation line with as many separators as a row rarely is: then a quote was
    opened and not closed, and rows are missing from the count.
    """
    reader = csv.reader(lines, delimiter=separator)
    rows, begins, joined = [], [], 0
    before = 0
    for row in reader:
        inside = lines[before + 1 : reader.line_num]
        taken = sum(line.count(separator) >= columns - 1 for line in inside) if columns > 2 else 0
        if taken:
            begins.append(before + 1)
            joined += taken
        before = reader.line_num
        if row:
            rows.append(row)
    if begins:
        warnings.warn(
            f"{path}: {len(begins):,} rows go on over {joined:,} lines that look like rows of their own, first from "
            f"line {begins[0]:,} on. A quote that is opened and not closed does this: close it, or write it twice.",
            stacklevel=2,
        )
    return rows


@contextmanager
def fields_of_any_length() -> Iterator[None]:
    """Lift csv's limit while reading: a file must not be refused for one long value."""
    before = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _json_record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _parquet_columns(path: Path, content: bytes, wanted: list[str]) -> dict[str, list[Any]]:
    file = _parquet(path, content)
    _check_names(path, wanted, [str(name) for name in file.schema_arrow.names])
    table = file.read(columns=wanted)
    return {name: _values(table.column(name)) for name in wanted}


def _values(column: Any) -> list[Any]:
    """Return the values; one that Python cannot hold, such as a day of the year 30,000, is missing."""
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # of one value, which may not stop the reading
        return [_value(scalar) for scalar in column]
    return values


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except Exception:
        return None


def _parquet(path: Path, content: bytes) -> Any:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DataError(f"{path} needs the package pyarrow: pip install 'quietgrad[tables]'.") from None
    try:
        return parquet.ParquetFile(io.BytesIO(content))
    except Exception as error:  # pyarrow's own kinds
        raise DataError(
            f"{path} is no complete Parquet file ({type(error).__name__}). Write it again."
        ) from None


def _check_names(path: Path, wanted: list[str], header: list[str]) -> None:
    counts = Counter(header)
    spelled = {name.lower() for name in header}
    # A file without a header begins with a row, which is not shown.
    if len(wanted) > 1 and not any(name.lower() in spelled for name in wanted):
        raise DataError(
            f"{path}: its first line has none of the {len(wanted):,} stated names. Write the names of the columns "
            "into it."
        )
    for name in wanted:
        if counts[name] > 1:
            raise DataError(
                f"{path} has {counts[name]} columns {name!r}. Rename all but one of them in its header."
            )
        if counts[name] == 0:
            raise DataError(
                f"{path} has no column {name!r}{nearest(name, header)}. Correct the name, or leave it out; the header "
                f"has {_listed(header)}.{_encoding_remark(header)}"
            )


def _encoding_remark(header: list[str]) -> str:
    odd = any("\N{REPLACEMENT CHARACTER}" in name for name in header)
    return " Not all of it is UTF-8: save the file as UTF-8." if odd else ""


def _listed(names: list[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

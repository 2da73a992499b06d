"""A user's own texts: a CSV, TSV or JSONL file with a column of texts and one of labels."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

from quietgrad.lab.data import hashed_words
from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import checked
from quietgrad.lab.data.files import read_text
from quietgrad.lab.data.source import Source
from quietgrad.lab.data.table_file import fields_of_any_length

SUFFIXES = (".csv", ".tsv", ".jsonl")
MOST_CLASSES = 1000


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer: a model's own, or hashed words."""

    def encode(self, texts: Sequence[str], /) -> Int64[ndarray, "n t"]: ...

    def describe(self) -> str: ...


def read_text_table(
    path: Path,
    words: Tokenizer | None = None,
    *,
    text: str = "text",
    label: str = "label",
    unit: str | None = None,
) -> Source:
    """Token numbers and labels, classes numbered in the order of their sorted names.

    Args:
        path: its suffix says the format; .gz is read too.
        words: the tokenizer, hashed words if left out.
        text: the column of texts.
        label: the column of labels, whole numbers or names.
        unit: the column that says whose each text is.
    """
    rows = list(_rows(path, (text, label) if unit is None else (text, label, unit)))
    if not rows:
        raise DataError(f"{path} has no rows. Give a header and one text a row.")
    names = sorted({row[1] for row in rows}, key=_order)
    if not 2 <= len(names) <= MOST_CLASSES:
        raise DataError(f"{path}: column {label!r} has {len(names)} classes. Give 2 to {MOST_CLASSES}.")
    number = {name: index for index, name in enumerate(names)}
    encoded = (words or hashed_words).encode([row[0] for row in rows])
    examples = checked(encoded, np.array([number[row[1]] for row in rows]), len(names), path)
    return Source(
        train=examples
        if unit is None
        else replace(examples, columns={unit: np.array([row[2] for row in rows])}),
        test=None,
        num_classes=len(names),
        normalisation=None,
        notes=f"{(words or hashed_words).describe()}; names and number of classes are assumed to be public",
    )


def is_text_table(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(SUFFIXES)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Text, name of the class and perhaps the user of every row; a row that cannot be used is named by its number."""
    known = ""
    for number, record in enumerate(_records(path), start=1):
        # Of the first record alone: entries of a later one may be its own.
        known = known or ", ".join(str(key) for key in record if key is not None)
        for column in columns:
            if record.get(column) is None:
                raise DataError(
                    f"{path}, record {number}: no column {column!r} (the first has {known}). Set data.text, data.label "
                    "and, to protect users, data.unit."
                )
        # Half a character, which JSON may spell, would stop tokenizers.
        text, *others = (str(record[column]).encode(errors="replace").decode() for column in columns)
        if not text.strip():
            raise DataError(f"{path}, record {number}: the text is empty. Leave such records out.")
        if len(others) == 2 and not others[1].strip():
            raise DataError(
                f"{path}, record {number}: the column {columns[2]!r} is empty. Say whose the text is."
            )
        yield text, *(other.strip() for other in others)


def _records(path: Path) -> Iterator[dict[Any, Any]]:
    content = read_text(path, encoding="utf-8-sig", remedy="Save it as UTF-8.")
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        yield from _json_lines(path, content)
        return
    tabs: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if name.endswith(".tsv") else {}
    with fields_of_any_length():
        records = list(csv.DictReader(io.StringIO(content, newline="" if not tabs else "\n"), **tabs))
    yield from records


def _json_lines(path: Path, content: str) -> Iterator[dict[Any, Any]]:
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError as error:
                reason = getattr(error, "msg", "a number of too many digits")
                raise DataError(f"{path}, line {number}: not JSON ({reason}). Repair the line.") from None
            except RecursionError:
                raise DataError(f"{path}, line {number}: nested too deeply. Repair the line.") from None
            if not isinstance(record, dict):
                raise DataError(f'{path}, line {number}: not an object. Write {{"text": …, "label": …}}.')
            yield record


def _order(name: str) -> tuple[int, int, str]:
    """Numbers by value, then names by letters."""
    return (0, int(name), "") if name.lstrip("-").isdigit() else (1, 0, name)

"""Attack: read off how many rows were kept what one of them holds.

Version 0.2 left out private rows with the content of a test row, and a reader that drops or refuses rows it cannot
parse does the same. Here the attacker writes one record and looks at N, at what is printed, and at whether it works.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from quietgrad.lab.data import Parts, load
from quietgrad.tables import Schema

SCHEMA = Schema(
    {"age": [0, 110], "ward": ["er", "icu"], "born": {"date": ["1900-01-01", "2024-12-31"]}, "y": "boolean"}
)
CELLS = [
    "",
    "NA",
    "1e999",
    "-5",
    "er",
    '"a ""quote"" and, comma"',
    "'",
    "\\",
    "2024-99-99",
    "9" * 5000,
    "\x00",
    "é",
    "=1+1",
]


def parts(folder: Path, row: list[str]) -> Parts:
    rows = [
        [str(20 + n % 6), "er" if n % 2 else "icu", "1980-05-05", "no" if n % 3 else "yes"] for n in range(30)
    ]
    content = "\n".join(",".join(cells) for cells in [["age", "ward", "born", "y"], *rows, row])
    (folder / "t.csv").write_text(content + "\n", encoding="utf-8")
    return load("t.csv", data_dir=folder, columns=SCHEMA, label="y", test=6)


@pytest.mark.parametrize(("place", "cell"), list(itertools.product(range(4), CELLS)))
def test_neither_n_nor_the_record_of_the_split_depends_on_a_row(
    tmp_path: Path, place: int, cell: str
) -> None:
    usual = ["50", "er", "1980-05-05", "no"]
    odd = [*usual[:place], cell, *usual[place + 1 :]]
    before, after = parts(tmp_path, usual), parts(tmp_path, odd)
    assert len(after.private) == len(before.private) == 25
    assert after.record == before.record
    assert (after.sizes, after.input_shape, after.classes) == (
        before.sizes,
        before.input_shape,
        before.classes,
    )
    moved = (after.private.tensors[0] != before.private.tensors[0]).any(1)
    assert int(moved.sum()) <= 1


def test_thirty_distinct_rows_are_all_used(tmp_path: Path) -> None:
    """In 0.2, 191 of 24,000 such rows were trained on."""
    rows = [
        f"{20 + n % 5},{'er' if n % 2 else 'icu'},1980-05-05,{'no' if n % 3 else 'yes'}" for n in range(30)
    ] * 1000
    (tmp_path / "t.csv").write_text("age,ward,born,y\n" + "\n".join(rows))
    found = load("t.csv", data_dir=tmp_path, columns=SCHEMA, label="y", test=6000)
    assert found.sizes == "30,000 rows: 24,000 private, 6,000 for testing (not protected by ε)"
    assert len(found.private.tensors[0].unique(dim=0)) <= 30

"""Pages that strangers can read: short paragraphs, few numbers in a row, short cells of tables, few words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.site import public_names

from tests.pages import ROOT, title

PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "SECURITY.md",
        *(p for p in (ROOT / "docs").rglob("*.md") if "notes" not in p.parts),
    ]
)
"""What users read. `docs/notes` keeps the history of measurements, with dates."""

MOST_WORDS, MOST_NUMBERS, MOST_IN_CELL, MOST_IN_SENTENCE, MOST_IN_ALL = 120, 8, 25, 25, 35_000
NUMBER = re.compile(r"(?<![\w.])[−-]?\d+(?:[.,]\d+)*(?![\w])")


def prose(page: Path) -> str:
    """The page without code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def blocks(page: Path) -> Iterator[str]:
    """Paragraphs, and lists as a whole."""
    for block in re.split(r"\n\s*\n", prose(page)):
        if block.strip() and not block.lstrip().startswith(("|", "#", ":::", "!", "<")):
            yield block


def paragraphs(page: Path) -> Iterator[str]:
    """Paragraphs, and single items of lists."""
    for block in blocks(page):
        yield from re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", block)


def sentences(page: Path) -> Iterator[str]:
    for paragraph in paragraphs(page):
        yield from re.split(r"(?<=[.!?:;])\s+", plain(paragraph))


def tables(page: Path) -> Iterator[list[list[str]]]:
    """The cells of each table, row by row."""
    for part in re.findall(r"(?:^\|.*\n?)+", prose(page), flags=re.MULTILINE):
        yield [re.split(r"(?<!\\)\|", line.strip()[1:-1]) for line in part.splitlines()]


def cells(page: Path) -> Iterator[str]:
    for table in tables(page):
        for row in table:
            yield from row


def plain(text: str) -> str:
    """Without the targets of links."""
    return re.sub(r"\]\([^)]*\)", "]", text)


def is_word(token: str) -> bool:
    """Bars and dashes that draw a table are none."""
    return re.search(r"\w", token) is not None


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_paragraphs_and_lists_are_short(page: Path) -> None:
    found = [p.strip()[:70] for p in blocks(page) if len(plain(p).split()) > MOST_WORDS]
    assert not found, f"more than {MOST_WORDS} words: {found}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_sentences_are_short(page: Path) -> None:
    found = [s.strip()[:70] for s in sentences(page) if len(s.split()) > MOST_IN_SENTENCE]
    assert not found, f"more than {MOST_IN_SENTENCE} words: {found}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_rows_of_a_table_have_as_many_cells_as_its_head(page: Path) -> None:
    """A renderer drops cells beyond the head without a word."""
    found = [row for table in tables(page) for row in table if len(row) != len(table[0])]
    assert not found


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_paragraphs_hold_few_numbers(page: Path) -> None:
    found = [p.strip()[:70] for p in paragraphs(page) if len(NUMBER.findall(plain(p))) > MOST_NUMBERS]
    assert not found, f"more than {MOST_NUMBERS} numbers: make it a table: {found}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_table_cells_are_short(page: Path) -> None:
    found = [c.strip()[:70] for c in cells(page) if len(plain(c).split()) > MOST_IN_CELL]
    assert not found, f"more than {MOST_IN_CELL} words: {found}"


def test_the_pages_together_are_no_book() -> None:
    words = {title(page): sum(map(is_word, plain(prose(page)).split())) for page in PAGES}
    assert sum(words.values()) <= MOST_IN_ALL, sorted(words.items(), key=lambda pair: -pair[1])[:8]


def test_docstrings_of_public_names_have_short_paragraphs() -> None:
    """Examples are left out; each argument counts on its own."""
    long = [
        f"{name}: {part[:50]}"
        for name, found in public_names().items()
        for part in re.split(
            r"\n\n|\n(?=\s*\w+: )|\nExample:\n.*", inspect.getdoc(found) or "", flags=re.DOTALL
        )
        if len(part.split()) > MOST_WORDS or len(NUMBER.findall(part)) > MOST_NUMBERS
    ]
    assert long == []

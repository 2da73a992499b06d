"""Pages that strangers can read: short paragraphs, few numbers in a row, short cells of tables, few words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, title

PAGES = sorted([ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "notes" not in p.parts)])
"""What users read. `docs/notes` keeps the history of measurements, with dates."""

MOST_WORDS, MOST_NUMBERS, MOST_IN_CELL, MOST_IN_ALL = 120, 8, 25, 35_000
NUMBER = re.compile(r"(?<![\w.])[−-]?\d+(?:[.,]\d+)*(?![\w])")


def prose(page: Path) -> str:
    """The page without code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "code", text)


def paragraphs(page: Path) -> Iterator[str]:
    """Paragraphs and single items of lists."""
    for block in re.split(r"\n\s*\n", prose(page)):
        if not block.strip() or block.lstrip().startswith(("|", "#", ":::", "!", "<")):
            continue
        yield from re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", block)


def cells(page: Path) -> Iterator[str]:
    for line in prose(page).splitlines():
        if line.startswith("|"):
            yield from re.split(r"(?<!\\)\|", line.strip().strip("|"))


def plain(text: str) -> str:
    """Without the targets of links."""
    return re.sub(r"\]\([^)]*\)", "]", text)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_paragraphs_are_short(page: Path) -> None:
    found = [p.strip()[:70] for p in paragraphs(page) if len(plain(p).split()) > MOST_WORDS]
    assert not found, f"more than {MOST_WORDS} words: {found}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_paragraphs_hold_few_numbers(page: Path) -> None:
    found = [p.strip()[:70] for p in paragraphs(page) if len(NUMBER.findall(plain(p))) > MOST_NUMBERS]
    assert not found, f"more than {MOST_NUMBERS} numbers: make it a table: {found}"


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_table_cells_are_short(page: Path) -> None:
    found = [c.strip()[:70] for c in cells(page) if len(plain(c).split()) > MOST_IN_CELL]
    assert not found, f"more than {MOST_IN_CELL} words: {found}"


def test_the_pages_together_are_no_book() -> None:
    words = {title(page): len(plain(prose(page)).split()) for page in PAGES}
    assert sum(words.values()) <= MOST_IN_ALL, sorted(words.items(), key=lambda pair: -pair[1])[:8]

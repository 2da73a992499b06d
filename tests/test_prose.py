"""Pages that strangers can read: short paragraphs, few numbers in a row, short cells of tables, few words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.site import public_names

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


def is_word(token: str) -> bool:
    """Bars and dashes that draw a table are none."""
    return re.search(r"\w", token) is not None


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

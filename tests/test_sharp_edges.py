"""The tables of docs/sharp_edges.md: every pattern is refused or right, and names a test that exists."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def rows() -> list[tuple[str, str, str]]:
    """(pattern, what happens, test) of the tables with three columns and tests in the last."""
    page = (ROOT / "docs" / "sharp_edges.md").read_text()
    lines = page[page.index("## Mixing and misuse") :].splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")
    ]
    return [(a, b, c.strip(" `")) for a, b, c in cells if a != "pattern"]


@functools.cache
def all_tests() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "tests").rglob("test_*.py"):
        found |= {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}
    return found


def test_there_are_at_least_twenty_patterns() -> None:
    assert len(rows()) >= 20


@pytest.mark.parametrize(("pattern", "outcome", "test"), rows(), ids=lambda cell: str(cell)[:40])
def test_a_pattern_is_refused_or_right_and_tested(pattern: str, outcome: str, test: str) -> None:
    assert outcome.startswith(("refused", "right")), pattern
    assert test in all_tests(), test

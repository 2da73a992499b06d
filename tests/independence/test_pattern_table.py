"""The lists of docs/notes/2026-11-independence.md name each pattern, and docs/sharp_edges.md counts them."""

from __future__ import annotations

import re

from tests.independence.patterns import APART, MIXING
from tests.test_sharp_edges import ROOT, all_tests

TESTS = {
    "Refused": "test_a_trainer_that_mixes_records_is_refused",
    "Right": "test_a_trainer_that_keeps_records_apart_is_accepted",
}


def listed(heading: str) -> dict[str, list[str]]:
    """Theme → patterns, below a heading that names the test."""
    page = (ROOT / "docs" / "notes" / "2026-11-independence.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    assert f"`{TESTS[heading]}`" in section
    assert TESTS[heading] in all_tests()
    return {
        theme: names.split("; ")
        for theme, names in re.findall(r"^- \*\*(.+?)\*\*: (.+)\.$", section, re.MULTILINE)
    }


def test_every_pattern_is_listed_once() -> None:
    for heading, patterns in (("Refused", MIXING), ("Right", APART)):
        names = [name for names in listed(heading).values() for name in names]
        assert sorted(names) == sorted(str(pattern) for pattern in patterns)


def test_the_page_counts_them() -> None:
    page = (ROOT / "docs" / "sharp_edges.md").read_text()
    assert f"\n{len(MIXING) + len(APART)} training loops" in page
    for heading, patterns in (("Refused", MIXING), ("Right", APART)):
        row = rf"^\| {len(patterns)} loops [^|]+ \| {heading.lower()} \| `{TESTS[heading]}` \|$"
        assert re.search(row, page, re.MULTILINE)


def test_what_needs_a_stated_rule_of_padding_is_listed_so() -> None:
    for theme, names in listed("Right").items():
        stated = [name for name in names if name.endswith("padded to the longest")]
        assert stated == (names if '`pad_to="longest"` stated' in theme else [])

"""The examples of Opacus: at most 8 lines change, the page shows them as they are, and they run."""

from __future__ import annotations

import pytest
from benchmarks.opacus_examples import example
from scripts.opacus_examples import NAMES, PAGE, changed, difference, page


@pytest.mark.parametrize("name", NAMES)
def test_at_most_eight_lines_change(name: str) -> None:
    assert 0 < changed(name) <= 8


def test_the_page_shows_what_changes() -> None:
    text = PAGE.read_text()
    assert all(difference(name) in text for name in NAMES)
    assert text == page(text), "run `python -m scripts.opacus_examples`"


@pytest.mark.parametrize("kind", ["plain", "private"])
@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = {"records": 100, "epochs": 1} | ({"width": 8} if name == "dcgan" else {})
    assert -1.0 <= example(name, kind).main(**short) <= 1.0
    assert capsys.readouterr().out.startswith("ε = " if kind == "private" else "")

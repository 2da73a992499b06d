"""The README's examples run as they stand, and the README is short."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from tests.pages import ROOT, snippets
from tests.test_prose import tables

TEXT = (ROOT / "README.md").read_text()


def run(code: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(code, scope)
    return scope


def test_the_first_example_has_at_most_15_lines_and_learns(capsys: pytest.CaptureFixture[str]) -> None:
    code = snippets(ROOT / "README.md")[0]
    assert len(code.splitlines()) <= 15
    scope = run(code)
    accuracy, epsilon = map(float, re.findall(r"\d+\.\d+", capsys.readouterr().out))
    assert accuracy > 0.85
    assert 1.9 < epsilon <= 2.0
    assert scope["classifier"].privacy_["epsilon"] <= 2.0


def test_the_loop_trains_and_leaves_a_plain_model(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    scope = run(snippets(ROOT / "README.md")[1])
    assert 2.99 < float(capsys.readouterr().out.splitlines()[0]) <= 3.0
    model, data = scope["model"], scope["train_set"]
    x, y = data.tensors
    assert (model(x).argmax(1) == y).float().mean() > 0.7
    assert type(scope["optimizer"]) is torch.optim.SGD
    fresh = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    fresh.load_state_dict(model.state_dict(), strict=True)


def test_there_is_an_installation_line_and_one_small_table_of_figures() -> None:
    assert "pip install" in TEXT
    assert [len(table) - 2 for table in tables(ROOT / "README.md") if "ε" in table[0][1]] == [5]
    assert len(TEXT.split()) < 700


def test_a_newcomer_finds_the_page_for_what_they_have() -> None:
    """Each row of "Where to begin" leads to pages, and the navigation has each of them."""
    begin = TEXT.split("## Where to begin")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| (.+?) \| (\[.+) \|$", begin, flags=re.MULTILINE))
    navigation = (ROOT / "mkdocs.yml").read_text()
    for word in ("CSV", "Trainer", "loop", "Opacus", "privacy officer"):
        assert any(word in row for row in rows), word
    for pages in rows.values():
        for page in re.findall(r"\(docs/(.+?)\)", pages):
            assert (ROOT / "docs" / page).exists()
            assert page in navigation

"""The figures on the page of correlated noise are those of the finished runs that lie beside it."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest
from benchmarks import banded_training
from benchmarks.banded_training import Results, Setting, rows

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "correlated_noise.md").read_text(encoding="utf-8")
STUDY = re.findall(r"^\| (CNN|head), (.+) \| ([138]) \| .* ± .* \|$", PAGE, re.MULTILINE)
"""Model, plan and ε of each row of the study."""


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> Results:
    def unexpected(setting: Setting, _found: object) -> dict[str, object]:
        raise AssertionError(f"{setting} is not in the file")

    monkeypatch.setattr(banded_training, "train", unexpected)
    monkeypatch.setattr(banded_training, "data_of", lambda *_: None)
    return Results(DOCS / "results" / "banded_training.jsonl", None)


def cell(runs: list[float]) -> str:
    return f"{statistics.mean(runs):.1f} ± {statistics.stdev(runs):.1f}"


@pytest.mark.parametrize(("model", "plan", "epsilon"), STUDY)
def test_a_row_of_the_study_is_made_of_the_file(
    finished: Results, model: str, plan: str, epsilon: str
) -> None:
    name = plan if model == "CNN" else f"head, {plan}"
    plain, banded = rows(finished, [name], [float(epsilon)], seeds=3)
    line = f"| {model}, {plan} | {epsilon} | {cell(plain['runs'])} | {cell(banded['runs'])} | {banded['bands']} |"
    assert line in PAGE


def test_the_study_has_both_models_and_every_budget() -> None:
    assert {(model, epsilon) for model, _, epsilon in STUDY} == {
        (m, e) for m in ("CNN", "head") for e in "138"
    }


def test_the_noise_of_summed_updates_is_that_of_the_file() -> None:
    found: dict[tuple[float, float], dict[int, str]] = {}
    for row in json.loads((DOCS / "results" / "banded_noise.json").read_text(encoding="utf-8")):
        of = found.setdefault((row["epochs"], row["epsilon"]), {})
        of[row["bands"]] = f"{row['computed']:.3f} / {row['measured']:.3f}"
        assert row["measured"] == pytest.approx(row["computed"], rel=0.06)
    lines = [f"| {epochs:g} | {e:g} | {of[4]} | {of[8]} | {of[16]} |" for (epochs, e), of in found.items()]
    assert len(lines) == 9
    assert all(line in PAGE for line in lines)

"""Maps of where a method leads DP-SGD: leads from trained rows, verdicts, and rows that are kept as they come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.papers.claims import papers
from quietgrad.lab.papers.experiment import Place
from quietgrad.lab.papers.finding import Finding, Row
from quietgrad.lab.papers.regimes import Corner, Regimes, judge_map
from quietgrad.lab.papers.registry import EXPERIMENTS
from quietgrad.lab.papers.training_entries import regimes_of
from quietgrad.lab.papers.trainings import TrainingPlan, Trainings
from quietgrad.lab.papers.verdicts import judge

SMALL = ("data.name=embedded", "data.private=400", "data.test=200", "training.batch=40", "training.epochs=1")
MAP = Regimes(
    label="Random Freeze",
    config="dp_sgd_embedded_eps2",
    base=("method.name=dp_sgd",),
    method=("method.name=random_freeze", "method.freeze=0.5"),
    plans={"quick": TrainingPlan(changes=(*SMALL, "method.clip=1.0", "model.name=linear"))},
    corners={
        "quick": tuple(
            Corner(size="p = 7,850", epsilon=epsilon, changes=(f"privacy.epsilon={epsilon}",))
            for epsilon in (1.0, 8.0)
        )
    },
)


@pytest.mark.parametrize("name", list(papers()))
def test_the_map_of_a_paper_has_dp_sgd_and_its_method_at_every_place(name: str) -> None:
    (found,) = regimes_of(name).values()
    configs = list(found.configs("quick").values())
    assert len(configs) == 2 * len(found.corners["quick"])
    for base, method in zip(configs[::2], configs[1::2], strict=True):
        assert base.method.name == "dp_sgd" != method.method.name
        assert (base.privacy, base.model, base.data, base.training) == (
            method.privacy,
            method.model,
            method.data,
            method.training,
        )


def test_the_maps_of_all_papers_share_their_baseline() -> None:
    shared = frozenset[str].intersection(
        *(EXPERIMENTS[name]["regimes"].trainings("quick") for name in papers())
    )
    assert len(shared) == len(regimes_of("gep")["regimes"].corners["quick"])


def test_a_lead_is_the_difference_of_two_trained_rows_and_rows_are_kept_as_they_come(tmp_path: Path) -> None:
    kept: list[Finding] = []
    finding = MAP.run("quick", Place(out=tmp_path, keep=kept.append))
    assert [len(each.rows) for each in kept] == [1, 2, 3, 4]
    plain, frozen = kept[-1].rows[:2]
    assert (plain.label, frozen.label) == ("DP-SGD, p = 7,850, ε = 1", "Random Freeze, p = 7,850, ε = 1")
    assert finding.rows[0].label == "p = 7,850, ε = 1"
    assert finding.rows[0].ours == pytest.approx(frozen.ours - plain.ours, abs=0.01)
    curves = finding.pictures[0].curves
    assert [curve.label for curve in curves] == ["p = 7,850", "lead of 2"]
    assert curves[0].y == tuple(row.ours for row in finding.rows)


@pytest.mark.parametrize(
    ("leads", "verdict"),
    [
        ((2.1, -1.0), "lead seen"),
        ((1.9, 0.0), "lead seen in part"),
        ((0.9, 0.5), "lead not seen"),
    ],
)
def test_a_map_is_judged_by_its_places(leads: tuple[float, ...], verdict: str) -> None:
    rows = [Row(label=f"{lead:g}", ours=lead, spread=0.5) for lead in leads]
    found, why = judge_map(rows)
    assert found == verdict
    assert f"{max(leads):+.1f}" in why


def test_a_large_lead_within_its_error_does_not_count() -> None:
    assert judge_map([Row(label="a", ours=4.0, spread=2.5)])[0] == "lead not seen"


def test_the_command_leaves_the_rows_of_a_table_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_self: Trainings, _scale: str, place: Place) -> Finding:
        row = Row(label="DP-SGD", ours=60.0)
        verdict, why = judge([row], ())
        place.keep(Finding(rows=(row,), verdict=verdict, why=why))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainings, "run", killed)
        patched.setattr(Trainings, "seconds", lambda *_: 1.0)
        CliRunner().invoke(app, ["papers", "gip", "table5", "--scale", "quick", "--out", str(tmp_path)])
    partial = json.loads((tmp_path / "gip.table5.quick.partial.json").read_text())
    assert [row["label"] for row in partial["finding"]["rows"]] == ["DP-SGD"]
    assert not (tmp_path / "gip.table5.quick.json").exists(), "the queue takes a result file as done"

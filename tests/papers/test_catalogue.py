"""The catalogue is whole, its commands exist, and the page that is made of it is current."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from pathlib import Path

import pytest
from scripts.papers_page import pages
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.cli.papers_view import THEIRS
from quietgrad.lab.errors import LabError
from quietgrad.lab.papers.claims import papers
from quietgrad.lab.papers.committed import Result, command_of, committed, write_result
from quietgrad.lab.papers.experiment import Place
from quietgrad.lab.papers.finding import SCALES, Row, finding_from
from quietgrad.lab.papers.registry import EXPERIMENTS, experiment_of
from quietgrad.lab.papers.training_entries import trainings_of
from quietgrad.lab.papers.trainings import Cell, Trainings
from quietgrad.lab.papers.verdicts import Level, Order, judge
from quietgrad.lab.run.interrupt import Stopped
from quietgrad.lab.run.train import Run

ROOT = Path(__file__).parents[2]
run = CliRunner().invoke
ENTRIES = [(one.id, entry) for one in papers().values() for entry in one.entries]
TRAININGS = [
    pytest.param(experiment, scale, id=f"{name}-{entry}-{scale}")
    for name, experiments in EXPERIMENTS.items()
    for entry, experiment in experiments.items()
    if isinstance(experiment, Trainings)
    for scale in experiment.scales
]


def test_every_algorithm_table_figure_and_statement_of_the_five_papers_is_there() -> None:
    listed = json.loads(run(app, ["papers", "--json"]).stdout)
    assert len(listed) == len(ENTRIES) >= 60
    counted = {name: {"table": 0, "figure": 0} for name in papers()}
    for row in listed:
        if row["kind"] in ("table", "figure"):
            counted[row["paper"]][row["kind"]] += 1
        assert all(row[key] for key in ("status", "command", "theirs", "ours", "verdict", "why")), row[
            "entry"
        ]
    assert counted == {
        "gep": {"table": 6, "figure": 7},
        "rgp": {"table": 5, "figure": 4},
        "pdp_sgd": {"table": 4, "figure": 13},
        "random_freeze": {"table": 9, "figure": 7},
        "gip": {"table": 6, "figure": 7},  # figure 4 in its three parts
    }


@pytest.mark.parametrize("check", sorted({entry.check for _, entry in ENTRIES}))
def test_what_checks_an_entry_exists(check: str) -> None:
    if check.startswith(("tests/", "docs/")):
        assert (ROOT / check).exists()
    elif check.startswith("quietgrad papers"):
        _, _, paper, item, _, scale = check.split()
        experiment = experiment_of(paper, item)
        assert experiment is not None
        assert scale in experiment.scales


def test_every_experiment_belongs_to_an_entry() -> None:
    known = {(name, entry.id) for name, entry in ENTRIES}
    assert {(name, item) for name, found in EXPERIMENTS.items() for item in found} <= known


@pytest.mark.parametrize(("experiment", "scale"), TRAININGS)
def test_the_configs_of_an_experiment_parse_and_its_claims_name_its_cells(
    experiment: Trainings, scale: str
) -> None:
    configs = experiment.configs(scale)  # type: ignore[arg-type]
    assert all(label in configs for claim in experiment.claims for label in claim.rows)
    budgets = {(c.privacy.epsilon, c.privacy.noise_multiplier) for n, c in configs.items() if "N.P." not in n}
    plans = {(c.data.private, c.training.epochs, c.training.batch) for c in configs.values()}
    if not experiment.x_label and "ε" not in "".join(configs) and "σ" not in "".join(configs):
        assert len(budgets) == 1, "rows are compared at one budget"
    assert len(plans) <= 2


def test_the_page_is_made_of_the_catalogue_and_the_committed_results() -> None:
    for path, text in pages().items():
        found = (ROOT / "docs" / path).read_text(encoding="utf-8")
        assert found == text, f"{path}: python -m scripts.papers_page"
    for result in committed().values():
        if result.finding.pictures:
            assert (ROOT / "docs" / "papers" / f"{result.name}.png").exists()


DECIMALS = re.compile(r"(?<!ε = )(?<![\w.,])\d+\.\d+(?!\w|\.\d)")
"""Numbers with a decimal point, budgets left out."""


def _is_among(number: str, result: Result) -> bool:
    digits = len(number.split(".")[1])
    figures = [n for row in result.finding.rows for n in (row.ours, row.theirs, row.spread) if n is not None]
    figures += [y for picture in result.finding.pictures for curve in picture.curves for y in curve.y]
    # A figure that ends in 5 may be rounded either way.
    near = any(abs(figure - float(number)) <= 0.5 * 10**-digits + 1e-9 for figure in figures)
    return near or number in f"{result.finding.why} {result.finding.settings} {result.remark}"


def test_the_numbers_of_the_pages_are_those_of_the_result_files() -> None:
    """Tables are made of the files; this is about what is written by hand: summaries, and the words of an entry."""
    results = committed()
    for one in papers().values():
        mine = [result for result in results.values() if result.paper == one.id]
        for entry in one.entries:
            if (result := results.get((one.id, entry.id))) is not None:
                for number in DECIMALS.findall(entry.ours):
                    assert _is_among(number, result) or number in entry.theirs, (one.id, entry.id, number)
        for number in DECIMALS.findall(one.summary):
            assert any(_is_among(number, result) for result in mine), (one.id, number)


def test_a_number_that_is_not_in_the_file_is_seen() -> None:
    result = committed()["rgp", "table2"]
    shown = f"{result.finding.rows[0].ours:.1f}"
    assert _is_among(shown, result)
    assert not _is_among(f"{result.finding.rows[0].ours + 5:.1f}", result)
    assert DECIMALS.findall("ε = 0.16: 78.9 against 68.7.") == ["78.9", "68.7"]


def test_a_committed_result_names_an_experiment_and_survives_being_written(tmp_path: Path) -> None:
    for result in committed().values():
        assert result.command == command_of(result.paper, result.entry, result.scale)
        experiment = experiment_of(result.paper, result.entry)
        assert experiment is not None
        assert result.scale in experiment.scales
        written = json.loads(write_result(result, tmp_path).read_text())
        assert finding_from(written["finding"]) == result.finding


COMMITTED = [
    pytest.param(result, experiment, id=result.name)
    for result in committed().values()
    if isinstance(experiment := experiment_of(result.paper, result.entry), Trainings)
]


@pytest.mark.parametrize(("result", "experiment"), COMMITTED)
def test_a_committed_verdict_follows_from_the_committed_rows(result: Result, experiment: Trainings) -> None:
    judged = judge(result.finding.rows, experiment.claims)
    assert judged == (result.finding.verdict, result.finding.why)
    if any(isinstance(claim, Order) for claim in experiment.claims):
        assert result.finding.verdict.startswith("lead" if len(result.finding.rows) > 1 else "not run")


def test_a_lemma_and_an_accuracy_never_have_the_same_verdict() -> None:
    listed = json.loads(run(app, ["papers", "--json"]).stdout)
    for row in listed:
        if row["kind"] in ("theorem", "lemma", "proposition", "corollary"):
            assert not row["verdict"].startswith("lead"), row
        if row["verdict"].startswith("lead"):
            assert row["command"].endswith(("quick", "reduced", "full")), "a lead is seen or not at a scale"
    kinds = {row["verdict"].split()[0] for row in listed}
    assert kinds <= {"holds", "does", "lead", "not"}


def test_where_the_headline_is_not_seen_other_leads_do_not_make_up_for_it() -> None:
    rows = [Row(label=name, ours=ours, spread=0.5) for name, ours in (("a", 75.0), ("b", 75.2), ("c", 60.0))]
    assert judge(rows, [Order("a", "b"), Order("a", "c")])[0] == "lead not seen"
    assert judge(rows, [Order("a", "c"), Order("a", "b")])[0] == "lead seen in part"
    assert judge(rows, [Order("a", "c"), Level("a", "b")])[0] == "lead seen"
    assert judge(rows, [Order("a", "missing"), Level("a", "b")])[0] == "holds", "of the rows that are there"
    assert judge(rows, [Order("a", "missing")])[0] == "not run"


def test_an_unknown_paper_or_entry_lists_what_exists() -> None:
    for arguments, shown in (
        (["gepp"], "gep, rgp"),
        (["gep", "table9"], "table1, table2"),
        (["gip", "table1"], ""),
    ):
        found = run(app, ["papers", *arguments])
        assert shown in found.output
    assert run(app, ["papers", "gepp"]).exit_code == 2
    refused = run(app, ["papers", "gip", "table1", "--scale", "quick"])
    assert refused.exit_code == 2
    assert "checked by" in refused.output


def test_missing_data_is_named_with_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("quietgrad.lab.data.catalogue.DEBIAN", tmp_path)
    monkeypatch.delenv("QUIETGRAD_DATA", raising=False)
    found = run(app, ["papers", "gep", "table1", "--scale", "full", "--out", str(tmp_path / "out")])
    assert found.exit_code == 2
    assert "mnist was not found" in found.output


@pytest.mark.slow
def test_an_experiment_writes_theirs_beside_ours_and_is_not_run_twice(tmp_path: Path) -> None:
    arguments = ["papers", "pdp_sgd", "figure4", "--scale", "quick", "--json", "--out", str(tmp_path)]
    first = run(app, arguments)
    assert first.exit_code == 0, first.output
    assert "on this machine" in first.stderr
    written = json.loads((tmp_path / "pdp_sgd.figure4.quick.json").read_text())
    assert {row["label"] for row in written["finding"]["rows"]} == {"DP-SGD", "PDP-SGD"}
    assert (tmp_path / "pdp_sgd.figure4.quick.png").exists()
    ledgers = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("ledger.jsonl")}
    again = run(app, arguments)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("ledger.jsonl")} == ledgers
    assert json.loads(again.stdout)["finding"]["rows"] == written["finding"]["rows"]


def test_an_interrupted_experiment_goes_on_in_the_middle_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ("method.name=dp_sgd", "method.clip=1.0", "data.private=500", "training.epochs=6")
    cells = tuple(Cell(label=name, config="gip_mnist_eps2", changes=(*changes, f"data.test={test}"))
                  for name, test in (("first", 100), ("second", 101)))  # fmt: skip
    plan = dataclasses.replace(trainings_of("gip")["table5"].plans["quick"], cells=())
    experiment = Trainings(cells=cells, plans={"quick": plan}, claims=())
    place, steps = Place(out=tmp_path), []
    whole = Run.step

    def stopped(own: Run, batch: object) -> None:
        whole(own, batch)
        steps.append(own.private.step)
        if len(steps) == 17:  # of 12 in the first run and 12 in the second
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Run, "step", stopped)
    with pytest.raises(Stopped, match="Start the command again"):
        experiment.run("quick", place)
    rows = experiment.run("quick", place).rows
    assert [row.label for row in rows] == ["first", "second"]
    assert steps == [*range(1, 13), *range(1, 13)], "no step is taken twice"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [((80.0, 75.0), (80.0, 75.0), "lead seen"), ((76.8, 75.0), (80.0, 75.0), "lead seen in part"),
     ((75.2, 75.0), (None, None), "lead not seen"), ((70.0, 75.0), (80.0, 75.0), "lead not seen")],
)  # fmt: skip
def test_a_verdict_follows_from_leads_and_spreads(
    ours: tuple[float, float], theirs: tuple[float | None, float | None], verdict: str
) -> None:
    rows = [
        Row(label=name, ours=o, theirs=t, spread=0.5) for name, o, t in zip("ab", ours, theirs, strict=True)
    ]
    assert judge(rows, [Order("a", "b")])[0] == verdict


@pytest.mark.parametrize(("other", "spread", "verdict"),
                         [(75.5, 0.1, "holds"), (78.0, 2.0, "holds"), (78.0, 0.1, "does not hold")])  # fmt: skip
def test_rows_that_are_claimed_to_be_level_may_differ_by_their_error_or_a_point(
    other: float, spread: float, verdict: str
) -> None:
    rows = [Row(label="a", ours=75.0, spread=spread), Row(label="b", ours=other, spread=spread)]
    assert judge(rows, [Level("a", "b")])[0] == judge(rows, [Level("b", "a")])[0] == verdict


def test_a_scale_that_has_no_plan_is_refused() -> None:
    experiment = experiment_of("gep", "figure1")
    assert experiment is not None
    with pytest.raises(LabError, match="runs at quick"):
        experiment.check("full")


def test_headings_say_where_a_papers_numbers_are_of_other_data() -> None:
    assert set(THEIRS) == set(SCALES)
    assert THEIRS["full"] == "theirs"
    assert "other data" in THEIRS["quick"]
    assert all("not comparable" in THEIRS[scale] for scale in ("quick", "reduced"))

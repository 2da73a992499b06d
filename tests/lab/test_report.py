"""The report: one file that asks for nothing from outside and says what a privacy officer needs."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.compare.baselines import public_only
from quietgrad.lab.compare.compare import folders, jobs, private_jobs, rows, run_job
from quietgrad.lab.compare.comparison import Comparison, total_epsilon
from quietgrad.lab.files import to_json
from quietgrad.lab.report import write_report
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

LOADING = {"src", "srcset", "data", "poster", "action", "background"}


class Page(HTMLParser):
    """Collects what a browser would fetch, the tags in use and the words on the page."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in ("meta", "br", "link", "input", "img"):
            self.open.append(tag)
        for name, value in attributes:
            if name in LOADING or (name.endswith("href") and not (value or "").startswith("#")):
                self.fetched.append(f"{tag} {name}={value}")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def read(path: Path) -> Page:
    page = Page()
    text = path.read_text(encoding="utf-8")
    page.feed(text)
    assert not page.open, "every tag is closed"
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert "@import" not in text
    assert not re.search(r"url\((?!#|['\"]?#)", text), "styles and figures refer to the page itself only"
    assert page.fetched == []
    assert "default-src 'none'" in text
    return page


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    train(load_config(write_config(folder), ["training.epochs=0.5"]), folder / "run")
    return folder / "run"


def test_the_report_of_a_run_is_self_contained_and_complete(finished: Path) -> None:
    done = CliRunner().invoke(app, ["report", str(finished), "--json"])
    assert done.exit_code == 0, done.output
    page = read(Path(json.loads(done.stdout)["report"]))
    for said in (
        "What is protected",
        "192 private records",
        "(ε, δ) = (3, 1e-05)",
        "e^ε",
        "one record replaced by nothing",
        "Poisson",
        "accountant",
        "privacy loss distributions",
        "Mechanism “dp_sgd”",
        "releases[0].clip.bound",
        "What it assumes",
        "What ε does not cover",
        "Tuning",
        "Test accuracy",
        "Research mode was off",
        "Ledger",
        "4 recorded of 4 planned",
        "torch",
        "training.seed = 0",
        "covered by ε",
    ):
        assert said in page.words, said
    assert "svg" in page.tags


def test_a_run_without_noise_is_called_not_private(tmp_path: Path) -> None:
    changes = ["training.epochs=0.2", "privacy.noise_multiplier=0.0"]
    config = write_config(tmp_path)
    config.write_text(config.read_text().replace("epsilon = 3.0\n", ""))
    train(load_config(config, changes), tmp_path / "run")
    words = read(write_report([tmp_path / "run"])).words
    assert "not private: no noise" in words
    assert "It protects nobody" in words
    assert "covered by ε" not in words


def test_an_unfinished_run_is_reported_with_what_it_spent(finished: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / "results.json").unlink()
    assert "unfinished: 4 of 4 steps" in read(write_report([tmp_path / "run"])).words


def test_audits_are_shown(finished: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(finished, tmp_path / "run")
    attack = {
        "attack": "canaries",
        "claimed": 3.0,
        "lower_bound": 1.25,
        "confidence": 0.999,
        "verdict": "consistent",
    }
    (tmp_path / "run" / "audit.json").write_text(json.dumps({"attacks": [attack]}))
    words = read(write_report([tmp_path / "run"])).words
    assert "canaries" in words
    assert "1.25" in words
    assert "consistent" in words


def test_names_cannot_smuggle_html_into_the_page(tmp_path: Path) -> None:
    odd = tmp_path / "<img src=x onerror=1>"
    odd.mkdir()
    changes = ["training.epochs=0.2", "about.who=<b>nobody</b>"]
    train(load_config(write_config(odd), changes), odd / "run<b>")
    page = read(write_report([odd / "run<b>"], tmp_path / "page.html"))
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert "<img src=x onerror=1>" in page.words
    assert "<b>nobody</b>" in page.words


def test_the_report_of_a_comparison_has_leaderboard_curves_and_ledgers(tmp_path: Path) -> None:
    base = load_config(write_config(tmp_path), ["training.epochs=0.5"])
    out = tmp_path / "board"
    todo = jobs(base, ["dp_sgd", "random_freeze"], [1.0, 2.0], 1, out, None)
    results = [run_job(job, lambda _: None) for job in todo]
    totals = (total_epsilon(folders(todo), 1e-5), total_epsilon(folders(private_jobs(todo)), 1e-5))
    made = Comparison((1.0, 2.0), 1e-5, *totals, (*public_only(base, 1, None), *rows(todo, results)))
    (out / "results.json").write_text(to_json(made.as_dict()))
    page = read(write_report([out]))
    for said in (
        "Methods at equal ε",
        "Leaderboard",
        "Accuracy against ε",
        "non-private",
        "random_freeze",
        "ε of all runs together",
        "--private-only",
        "dp_sgd-eps2-seed0",
        "not private: no noise",
        "What ε does not cover",
    ):
        assert said in page.words, said


def test_the_card_of_steps_speaks_of_all_runs(tmp_path: Path) -> None:
    """The private linear probe takes few steps of many records, DP-SGD many of few."""
    base = load_config(write_config(tmp_path), ["training.epochs=0.5"])
    todo = jobs(base, ["dp_sgd", "quiet"], [2.0], 1, tmp_path, None, baseline=False)
    found = {job.label: (run_job(job, lambda _: None), read_run(job.out))[1] for job in todo}
    first, quiet = found["dp_sgd"], found["quiet"]
    assert first.planned < quiet.planned
    results = [{**run.results, "epsilon": run.epsilon} for run in found.values() if run.results]
    made = Comparison((2.0,), 1e-5, 2.0, 2.0, tuple(rows(todo, results)))
    (tmp_path / "results.json").write_text(to_json(made.as_dict()))
    page = read(write_report([tmp_path]))
    assert f"{first.planned} to {quiet.planned}" in page.words
    assert f"of 24 to {quiet.units} records each on average" in page.words
    best = max(made.rows, key=lambda row: row.accuracy)
    assert f"The guarantee, for the run {best.runs[0]}" in page.words


def test_figures_take_the_colours_of_the_page(finished: Path) -> None:
    text = write_report([finished]).read_text()
    assert "currentColor" in text
    assert "#010203" not in text
    assert "prefers-color-scheme: dark" in text

"""`quietgrad train` and the other commands on a table of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from tests.tables.patients import CONFIG, patients, write_config, write_csv

runner = CliRunner()


def call(*arguments: object) -> str:
    done = runner.invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def refused(*arguments: object) -> str:
    done = runner.invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    return write_config(folder, write_csv(folder / "patients.csv", patients()))


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    out = config.parent / "run"
    printed = call("train", config, "--out", out)
    assert "300 rows: 240 private, 60 for testing (not protected by ε)" in printed
    assert "(largest class" in printed
    return out


def test_every_row_is_used_and_the_metrics_are_there(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    assert results["records"] == 240
    metrics = results["metrics"]
    assert metrics["rows"] == 60
    assert metrics["accuracy"] == results["accuracy"]
    assert 0.5 <= metrics["majority"] < 1
    assert metrics["auc"] > 0.7
    page = (run / "report.html").read_text()
    assert "always the largest class" in page
    assert "balanced accuracy" in page


def test_a_run_is_verified_resumed_reported_and_explained(config: Path, run: Path) -> None:
    assert "The claim stands" in call("verify", run)
    call("report", run)
    call("train", config, "--out", run, "--resume")
    assert "The claim stands" in call("verify", run)
    assert "240 private" in call("explain", config)


def test_the_order_of_columns_survives_the_config_of_a_run(run: Path) -> None:
    from quietgrad.lab.run.config import load_config

    assert list(load_config(run / "config.toml").columns) == [
        "age",
        "ward",
        "admitted",
        "smoker",
        "readmitted",
    ]


def test_without_test_rows_nothing_is_measured(config: Path, tmp_path: Path) -> None:
    printed = call("train", config, "--out", tmp_path / "run", "--set", "data.test=0")
    assert "300 rows: all private, none for testing" in printed
    assert "no test data, so nothing was measured" in printed
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (results["accuracy"], results["metrics"], results["records"]) == (None, {}, 300)
    assert "data.test = 0 leaves nothing to compare" in refused("compare", config, "--set", "data.test=0")
    assert "data.test is 0" in refused("audit", tmp_path / "run")
    assert "300 rows" in call("explain", config, "--set", "data.test=0", "--set", "method.name=dp_sgd")


@pytest.mark.slow
def test_audit_and_compare_work_on_a_table(config: Path, run: Path, tmp_path: Path) -> None:
    assert "verdict: consistent" in call("audit", run, "--canaries", 0)
    small = ("--set", "training.batch=60", "--set", "training.epochs=2", "--private-only")
    shown = call("compare", config, "--methods", "quiet,dp_sgd", "--out", tmp_path / "board", *small)
    assert "Always the largest class" in shown
    assert "AUC" in shown
    assert "240 private, 60 for testing" in shown


BAD = {
    "label missing from the file": ('label = "readmitted"', 'label = "died"', "has no column 'died'"),
    "label unstated": ('label = "readmitted"', 'label = "?"', 'data.label = "?" is not stated yet'),
    "label with one class": ('readmitted = "boolean"', 'readmitted = ["no"]', "single class 'no'"),
    "label as 0 and 1": (
        'readmitted = "boolean"',
        "readmitted = [0, 1]",
        'write "boolean", or {category = [0, 1]}',
    ),
    "label as a date": (
        'readmitted = "boolean"',
        "readmitted = [2020-01-01, 2021-01-01]",
        "a date cannot be the label",
    ),
    "label as an identifier": (
        'readmitted = "boolean"',
        f"readmitted = {[f'P{n}' for n in range(400)]}",
        "states 400 classes for 300 rows",
    ),
    "label twice": (
        "age = [0, 110]",
        'age = [0, 110]\nreadmited = "boolean"',
        "no column 'readmited' (did you mean",
    ),
    "bounds reversed": (
        "age = [0, 110]",
        "age = [110, 0]",
        "bounds [110, 0] must be finite and the first below",
    ),
    "nothing stated": ("age = [0, 110]", 'age = "?"', "Error: columns.age: nothing is stated yet"),
    "a number's bounds for classes": (
        'readmitted = "boolean"',
        "readmitted = [0, 1]",
        "Error: columns.readmitted is the label, and [0, 1] are bounds of a number",
    ),
    "misspelt column": ("age = [0, 110]", "aeg = [0, 110]", "no column 'aeg' (did you mean 'age'?)"),
    "dates reversed": ("[2015-01-01, 2024-12-31]", "[2024-12-31, 2015-01-01]", "must be in order"),
    "test unstated": ("test = 60\n", "", "data.test is not stated"),
    "test takes all": ("test = 60\n", "test = 300\n", "leaves none of 300 to train on"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_statements_are_one_line_and_leave_nothing_behind(
    config: Path, tmp_path: Path, name: str
) -> None:
    old, new, said = BAD[name]
    text = CONFIG.replace(old, new)
    assert text != CONFIG
    bad = write_config(tmp_path, config.parent / "patients.csv", text.replace("{category", "{{category"))
    line = refused("train", bad, "--out", tmp_path / "run")
    assert said in line
    assert ", got {" not in line
    assert not (tmp_path / "run").exists()


def test_a_skeleton_comes_from_the_header_alone(config: Path, tmp_path: Path) -> None:
    table = config.parent / "patients.csv"
    out = tmp_path / "new.toml"
    assert "7 columns are in" in call("columns", table, "--out", out)
    text = out.read_text()
    assert 'age = "?"' in text
    assert 'patient_id = "skip"\n' in text
    assert "looking at values is not free" in text
    header = tmp_path / "patients.csv"
    header.write_text(table.read_text().splitlines()[0] + "\n")
    alone: dict[str, Any] = json.loads(call("columns", header, "--json"))
    assert alone["toml"].replace(str(header), "") == text.replace(str(table), "")
    assert "is not stated yet" in refused("train", out, "--out", tmp_path / "run") or "stated" in refused(
        "train", out
    )
    assert "exists already" in refused("columns", table, "--out", out)
    assert "does not exist" in refused("columns", tmp_path / "none.csv")

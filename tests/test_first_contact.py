"""The first tasks of four newcomers, each from beginning to end as the pages describe them."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from tests.lab.tiny import write_config
from tests.pages import ROOT, snippets
from tests.tables.patients import patients, write_csv

STATED = {
    "age": "[0, 110]",
    "ward": '["er", "icu", "surgery"]',
    "admitted": "[2015-01-01, 2024-12-31]",
    "smoker": '"boolean"',
    "readmitted": '"boolean"',
    "patient_id": '"skip"',
    "notes": '"skip"',
}
QUICK = ["--set", "training.epochs=0.5"]


def call(*words: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == exit_code, done.output
    return done.output


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which a newcomer works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill_in(config: Path) -> None:
    """Answer each "?" that `quietgrad columns` left, as a user does in an editor."""
    lines = []
    for line in config.read_text().splitlines():
        name = line.split("=")[0].strip(" #")
        lines.append(f"{name} = {STATED[name]}" if "?" in line and name in STATED else line)
    text = "\n".join(lines)
    text = re.sub(r"^#? *label = .*$", 'label = "readmitted"', text, flags=re.MULTILINE)
    text = re.sub(r"^#? *test = .*$", "test = 60", text, flags=re.MULTILINE)
    text = re.sub(r"^#? *epsilon = .*$", "epsilon = 8.0", text, flags=re.MULTILINE)
    config.write_text(re.sub(r"^#? *delta = .*$", "delta = 1e-3", text, flags=re.MULTILINE))


@pytest.mark.slow
def test_an_engineer_goes_from_a_csv_file_to_predictions(desk: Path) -> None:
    write_csv(desk / "patients.csv", patients())
    call("columns", "patients.csv", "--out", "patients.toml")
    assert "nothing is stated yet" in call("train", "patients.toml", exit_code=2)
    fill_in(desk / "patients.toml")
    assert "240 private" in call("explain", "patients.toml")
    assert "ε = 8" in call("train", "patients.toml")
    new = [{key: value for key, value in row.items() if key != "readmitted"} for row in patients(20, seed=3)]
    write_csv(desk / "new.csv", new)
    call("predict", "runs/patients", "new.csv", "--out", "answers.csv", "--keep", "patient_id")
    with (desk / "answers.csv").open() as file:
        answers = list(csv.DictReader(file))
    assert [row["patient_id"] for row in answers] == [row["patient_id"] for row in new]
    assert "The claim stands" in call("verify", "runs/patients")


def test_a_scikit_learn_user_fits_a_pipeline_on_a_data_frame() -> None:
    pytest.importorskip("sklearn")
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    from quietgrad.sklearn import PrivateClassifier

    frame = pd.DataFrame(patients(400))
    columns = {"age": [0, 110], "ward": ["er", "icu", "surgery"], "smoker": "boolean"}
    model = make_pipeline(
        FunctionTransformer(lambda rows: rows[list(columns)]),
        PrivateClassifier(epsilon=8.0, delta=1e-3, columns=columns, classes=["no", "yes"]),
    )
    model.fit(frame, frame["readmitted"])
    new = pd.DataFrame(patients(200, seed=5))
    assert model.score(new, new["readmitted"]) > 0.6
    privacy = model[-1].privacy_
    assert privacy["total_epsilon"] == privacy["epsilon"] <= 8.0


@pytest.mark.slow  # each run of a comparison is a process of its own
def test_a_researcher_compares_the_method_of_the_page(desk: Path) -> None:
    code = next(code for code in snippets(ROOT / "docs" / "extending.md") if code.startswith("# method"))
    (desk / "my_module.py").write_text(code)
    write_config(desk)
    said = call(
        *("compare", "own.toml", "--methods", "dp_sgd,my_module:bitfit", "--private-only", "--out", "table"),
        *QUICK,
    )
    assert "my_module:bitfit" in said
    call("report", "table")
    assert "code of its own" in call("verify", "table")


def test_a_privacy_officer_finds_a_changed_accuracy_in_the_report(desk: Path) -> None:
    write_config(desk)
    call("train", "own.toml", "--out", "run", *QUICK)
    assert "The claim stands" in call("verify", "run")
    assert "In all: ε = 3 at" in call("ledger", ".")
    report = desk / "run" / "report.html"
    accuracy = re.search(r"\d+\.\d%", report.read_text())
    assert accuracy is not None
    report.write_text(report.read_text().replace(accuracy[0], "99.9%"))
    assert "report.html" in call("verify", "run", exit_code=1)

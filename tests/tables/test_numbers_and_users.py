"""`quietgrad train` on a label that is a number, and on users with several rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quietgrad as qg
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.data import load
from quietgrad.lab.serve import TrainedModel
from quietgrad.tables import Schema
from tests.tables.patients import CONFIG, patients, write_config, write_csv
from tests.tables.test_table_runs import call, refused

NUMBER = CONFIG.replace('label = "readmitted"', 'label = "days"').replace(
    'smoker = "boolean"', 'smoker = "boolean"\ndays = {{ number = [0, 40], unit = "d" }}'
)
USERS = CONFIG.replace("test = 60", 'test = 30\nunit = "patient_id"\nmost_records = 2')


def stays(rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """How long a patient stays grows with the age; some lengths are missing, beyond the bounds or words."""
    found = []
    for number, record in enumerate(patients(rows, seed)):
        days: Any = 0.3 * float(record["age"] or 60) + 8 * (record["ward"] == "icu")
        found.append({**record, "days": {0: "", 1: "long", 2: 1e9}.get(number % 50, f"{days:.1f}")})
    return found


@pytest.fixture(scope="module")
def number_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    config = write_config(folder, write_csv(folder / "stays.csv", stays(900)), NUMBER)
    printed = call("train", config, "--out", folder / "run")
    assert "R² 0." in printed
    assert "mean absolute error" in printed
    assert "900 rows: 840 private" in printed
    return folder / "run"


def test_a_number_is_measured_by_its_error(number_run: Path) -> None:
    results = json.loads((number_run / "results.json").read_text())
    metrics = results["metrics"]
    assert results["accuracy"] is None
    # Two of a hundred targets are 40 by the bound alone, which takes a part of R².
    assert metrics["r2"] > 0.4
    assert metrics["mae"] < 0.8 * metrics["mean_mae"]
    assert 2 < metrics["mean_mae"] < 10  # in days
    page = (number_run / "report.html").read_text()
    assert "mean absolute error of always the mean" in page
    assert "always the largest class" not in page


def test_a_run_of_numbers_is_verified_resumed_and_explained(number_run: Path) -> None:
    config = number_run.parent / "patients.toml"
    assert "The claim stands" in call("verify", number_run)
    call("train", config, "--out", number_run, "--resume")
    assert "The claim stands" in call("verify", number_run)
    assert "Predicts a number" in call("explain", config)


def test_a_model_of_numbers_predicts_and_travels(number_run: Path, tmp_path: Path) -> None:
    model = qg.load(str(number_run))
    assert isinstance(model, TrainedModel)
    assert (model.target, model.classes, model.label) == ((0, 40), (), "days")
    new = stays(40, seed=5)
    said = model.predict(new)
    assert isinstance(said, np.ndarray)
    assert said.min() >= 0
    assert said.max() <= 40
    with pytest.raises(ValueError, match="predicts the number 'days'"):
        model.predict_proba(new)
    out = tmp_path / "preds.csv"
    call("predict", number_run, write_csv(tmp_path / "new.csv", new), "--out", out)
    assert [float(row["prediction"]) for row in csv.DictReader(out.open())] == pytest.approx(said, rel=1e-4)
    call("export", number_run, "--safetensors", "--out", tmp_path / "model")
    again = qg.load(str(tmp_path / "model"))
    assert np.array_equal(again.predict(new), said)
    assert "predicts a number" in refused("predict", number_run, tmp_path / "new.csv", "--threshold", 0.3)


def test_a_number_goes_to_onnx(number_run: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    call("export", number_run, "--onnx", "--out", tmp_path)
    model, new = qg.load(str(number_run)), stays(40, seed=5)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    (said,) = session.run(None, {"inputs": model.encode(new).numpy()})
    assert np.allclose(said[:, 0], model.predict(new), atol=1e-3)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[privacy]", '[method]\nname = "dp_sgd"\n[privacy]', "leave out [method]"),
        ("test = 60", "test = 60\npublic = 10", "Leave out method.moments and data.public"),
        ("[0, 40]", "[40, 0]", "the first below the second"),
        ("[privacy]", '[method]\nname = "quiet"\nencoder = "pixels"\n[privacy]', "are for images"),
    ],
)
def test_what_numbers_do_not_go_with_is_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    data = write_csv(tmp_path / "stays.csv", stays(100))
    config = write_config(tmp_path, data, NUMBER.replace(old, new, 1))
    assert said in refused("train", config, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_number_has_nothing_to_compare(number_run: Path) -> None:
    assert "is a number" in refused("compare", number_run.parent / "patients.toml")


def test_bounds_one_apart_are_a_number_where_they_say_so(tmp_path: Path) -> None:
    shares = [{**record, "days": number % 7 / 7} for number, record in enumerate(stays(100))]
    config = write_config(
        tmp_path, write_csv(tmp_path / "stays.csv", shares), NUMBER.replace("[0, 40]", "[0, 1]")
    )
    assert "Predicts a number" in call("explain", config)


@pytest.fixture(scope="module")
def user_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("users")
    config = write_config(folder, write_csv(folder / "patients.csv", patients(800)), USERS)
    assert "370 users private, 60 for testing" in call("train", config, "--out", folder / "run")
    return folder / "run"


def test_users_are_what_is_protected(user_run: Path) -> None:
    results = json.loads((user_run / "results.json").read_text())
    assert (results["records"], results["batch"], results["covered"]) == (370, 370, True)
    ledger = Ledger.read(user_run / "ledger.jsonl")
    assert (ledger.description["people"], ledger.description["most_records"]) == (370, 2)
    statement = json.loads((user_run / "privacy.json").read_text())
    assert "one person with all records, as the column 'patient_id'" in statement["unit"]
    assert "The claim stands" in call("verify", user_run)
    assert results["metrics"]["auc"] > 0.7
    assert "patient_id" not in qg.load(str(user_run)).schema


def test_how_many_rows_a_user_has_decides_nothing(tmp_path: Path) -> None:
    """Ten users of two rows and ten of one are too few or enough by their own number alone."""
    schema = Schema({"age": [0, 110], "readmitted": "boolean"})
    for users, rows in ((20, 1), (20, 3)):
        records = [dict(patients(1)[0], patient_id=f"P{n}") for n in range(users) for _ in range(rows)]
        path = write_csv(tmp_path / "few.csv", records)
        parts = load(str(path), columns=schema, label="readmitted", unit="patient_id", test=0)
        assert parts.units == 20
    path = write_csv(tmp_path / "few.csv", records[:30])  # ten users of three rows
    with pytest.raises(qg.lab.data.DataError, match="has 10 users"):
        load(str(path), columns=schema, label="readmitted", unit="patient_id", test=0)


def test_sums_of_users_are_refused(tmp_path: Path) -> None:
    data = write_csv(tmp_path / "p.csv", patients(100))
    text = USERS.replace("most_records = 2", 'most_records = 2\npooled = "sum"')
    assert "averages the records of a user" in refused("train", write_config(tmp_path, data, text))

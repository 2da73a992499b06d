"""The example of the page on tables: a made-up CSV file, a private model, its use."""

from __future__ import annotations

import csv
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import quietgrad as qg
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.metrics import area_under_curve
from quietgrad.lab.run.task import load_task
from tests.tables.test_table_runs import call

EXAMPLES = Path(__file__).parents[2] / "examples"


def make_patients(folder: Path, rows: int, seed: int = 0, name: str = "patients.csv") -> Path:
    spec = importlib.util.spec_from_file_location("make_patients", EXAMPLES / "make_patients.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.write_csv(folder / name, module.make_rows(rows, seed))
    return folder / name


def trained(folder: Path, rows: int, test: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page tells a reader to do, in a folder of its own."""
    monkeypatch.chdir(folder)
    make_patients(folder, rows)
    shutil.copy(EXAMPLES / "patients.toml", folder / "patients.toml")
    printed = call("train", "patients.toml", "--set", f"data.test={test}")
    assert f"{rows:,} rows: {rows - test:,} private, {test:,} for testing (not protected by ε)" in printed
    run = folder / "runs" / "patients"
    results = json.loads((run / "results.json").read_text())
    assert results["records"] == rows - test  # all of them
    assert results["covered"]
    assert results["epsilon"] <= 3.0
    return run


def check_use(run: Path, folder: Path) -> None:
    """Predict new rows, with a threshold too; every format gives the same."""
    new = make_patients(folder, 400, seed=1, name="new.csv")
    call("predict", run, new, "--out", folder / "preds.csv", "--keep", "patient_id")
    records = list(csv.DictReader(new.open()))
    said = list(csv.DictReader((folder / "preds.csv").open()))
    assert [row["patient_id"] for row in said] == [row["patient_id"] for row in records]
    model = qg.load(str(run))
    shares = model.predict_proba(records)
    assert [float(row["p(yes)"]) for row in said] == pytest.approx(shares[:, 1], abs=1e-5)
    assert 0.05 < shares[:, 1].mean() < 0.25  # of 12%
    call("export", run, "--safetensors", "--out", folder / "model")
    assert np.array_equal(qg.load(str(folder / "model")).predict_proba(records), shares)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    call("export", run, "--onnx", "--out", folder / "onnx")
    inputs = model.encode(records)
    (logits,) = runtime.InferenceSession(folder / "onnx" / "model.onnx").run(None, {"inputs": inputs.numpy()})
    assert np.allclose(logits, model(inputs).numpy(), atol=1e-3)


def test_the_example_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, rows=3000, test=900, monkeypatch=monkeypatch)
    assert json.loads((run / "results.json").read_text())["metrics"]["auc"] > 0.6
    check_use(run, tmp_path)


@pytest.mark.slow
def test_the_example_is_within_three_points_of_no_privacy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    run = trained(tmp_path, rows=30_000, test=6000, monkeypatch=monkeypatch)
    results = json.loads((run / "results.json").read_text())
    assert results["records"] == 24_000
    parts = load_task(load_config(run / "config.toml"))
    x, y = (tensor.numpy() for tensor in parts.private.tensors)
    fitted = linear_model.LogisticRegression(max_iter=2000).fit(x, y)
    inputs, labels = parts.test.tensors
    scores = torch.from_numpy(fitted.decision_function(inputs.numpy()))
    reference = area_under_curve(scores, labels == 1)
    assert reference is not None
    print(f"AUC {results['metrics']['auc']:.4f} at ε = 3, {reference:.4f} without privacy")
    assert results["metrics"]["auc"] > reference - 0.03
    check_use(run, tmp_path)
    check_threshold(run, tmp_path)


def check_threshold(run: Path, folder: Path) -> None:
    """One class only with ½; the share of the rare class as threshold finds most of it."""
    records = list(csv.DictReader(make_patients(folder, 6000, seed=2, name="more.csv").open()))
    model, truth = qg.load(str(run)), np.array([record["readmitted"] == "yes" for record in records])
    said = np.array(model.predict(records, threshold=0.12)) == "yes"
    balanced = (said[truth].mean() + 1 - said[~truth].mean()) / 2
    print(f"balanced accuracy {balanced:.3f} with a threshold of 0.12")
    assert balanced > 0.63

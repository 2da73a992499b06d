"""A finished model in use: loaded, predicting and exported, with its columns and classes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import quietgrad as qg
from quietgrad._linear_probe.calibration import class_probabilities
from quietgrad._linear_probe.rule import TABLE_CLIP, TABLE_NOISE
from quietgrad.lab.serve import TrainedModel
from tests.tables.patients import patients, write_config, write_csv
from tests.tables.test_table_runs import call, refused

NEW = patients(40, seed=9)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("use")
    data = write_csv(folder / "patients.csv", patients())
    call("train", write_config(folder, data), "--out", folder / "run")
    data.unlink()  # a model is used without the records that it was trained on
    return folder / "run"


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    found = qg.load(str(run))
    assert isinstance(found, TrainedModel)
    return found


def test_a_model_knows_its_columns_classes_and_epsilon(model: TrainedModel) -> None:
    assert model.schema is not None
    assert list(model.schema) == ["age", "ward", "admitted", "smoker"]
    assert (model.classes, model.label) == (("no", "yes"), "readmitted")
    assert model.epsilon == pytest.approx(8.0, abs=1e-2)
    assert not any(p.requires_grad for p in model.parameters())


def test_it_predicts_from_any_form_of_a_table(model: TrainedModel) -> None:
    shares = model.predict_proba(NEW)
    assert np.allclose(shares.sum(1), 1)
    assert np.array_equal(model.predict_proba(pd.DataFrame(NEW)), shares)
    answers = model.predict(NEW)
    right = np.mean([answer == record["readmitted"] for answer, record in zip(answers, NEW, strict=True)])
    assert right > 0.6
    logits = model(model.encode(NEW)).double()
    assert torch.allclose(
        class_probabilities(logits, TABLE_CLIP, TABLE_NOISE), torch.from_numpy(shares), atol=1e-6
    )
    # The same order as the logits, less certain: the clip's bias and the noise are taken out.
    assert np.array_equal(shares.argmax(1), logits.argmax(1).numpy())
    assert shares.max(1).mean() < float(logits.softmax(1).amax(1).mean())
    assert model.predict_proba([]).shape == (0, 2)


def test_a_threshold_finds_more_of_a_rare_class(run: Path, model: TrainedModel, tmp_path: Path) -> None:
    found = [list(model.predict(NEW, threshold=level)).count("yes") for level in (0.0, 0.2, 0.5, 0.8, 1.1)]
    assert found == sorted(found, reverse=True)
    assert (found[0], found[-1]) == (40, 0)
    assert model.predict(NEW, threshold=0.5) == model.predict(NEW)
    file = write_csv(tmp_path / "new.csv", NEW)
    printed = call("predict", run, file, "--threshold", 0)
    assert printed.count("yes,") == 40
    assert "number from 0 to 1" in refused("predict", run, file, "--threshold", 1.5)


def test_predict_writes_a_file(run: Path, model: TrainedModel, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv", NEW)
    out = tmp_path / "preds.csv"
    assert "40 predictions are in" in call("predict", run, file, "--out", out, "--keep", "patient_id")
    rows = list(csv.DictReader(out.open()))
    assert list(rows[0]) == ["patient_id", "prediction", "p(no)", "p(yes)"]
    assert [row["prediction"] for row in rows] == model.predict(NEW)
    assert [row["patient_id"] for row in rows] == [record["patient_id"] for record in NEW]
    unlabelled = [{key: value for key, value in record.items() if key != "readmitted"} for record in NEW]
    assert json.loads(call("predict", run, write_csv(file, unlabelled), "--json"))["rows"] == 40
    without_age = [{"ward": "er"}] * 3
    assert "has no column 'age'" in refused("predict", run, write_csv(file, without_age))
    assert "does not exist" in refused("predict", run, tmp_path / "none.csv")


@pytest.mark.parametrize("kind", ["--safetensors", "--hf"])
def test_an_exported_folder_loads_to_the_same_model(
    run: Path, model: TrainedModel, tmp_path: Path, kind: str
) -> None:
    call("export", run, kind, "--out", tmp_path / "out")
    again = qg.load(str(tmp_path / "out"))
    assert (again.classes, again.schema, again.facts) == (model.classes, model.schema, model.facts)
    assert np.array_equal(again.predict_proba(NEW), model.predict_proba(NEW))
    if kind == "--hf":
        card = (tmp_path / "out" / "README.md").read_text()
        assert "library_name: quietgrad" in card
        assert "| (ε, δ) | (8, 0.001) |" in card


def test_onnx_gives_the_same_logits(run: Path, model: TrainedModel, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    call("export", run, "--onnx", "--out", tmp_path)
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    for records in (NEW, NEW[:1]):
        inputs = model.encode(records)
        (logits,) = session.run(None, {"inputs": inputs.numpy()})
        assert np.allclose(logits, model(inputs).numpy(), atol=1e-4)
    known = session.get_modelmeta().custom_metadata_map
    assert json.loads(known["classes"]) == ["no", "yes"]
    assert json.loads(known["features"]) == list(model.feature_names)
    assert qg.tables.Schema(json.loads(known["columns"])) == model.schema


def test_what_cannot_be_used_is_one_line(run: Path, tmp_path: Path) -> None:
    assert "Give one of --onnx" in refused("export", run)
    assert "is not a run" in refused("predict", tmp_path, tmp_path / "x.csv")
    (tmp_path / "new.npz").write_bytes(b"")
    assert "is not what this model reads" in refused("predict", run, tmp_path / "new.npz")

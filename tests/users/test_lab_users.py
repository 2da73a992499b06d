"""A run of the lab whose unit is a user: config, results, statement, audit and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.data.shipped import made_up_users
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.attack import audit_run, open_run
from quietgrad.lab.run.config import Config, load_config
from quietgrad.lab.run.preview import explain_config
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config, write_data

PATIENTS = np.repeat(np.arange(30), 8)


def config(folder: Path, *changes: str, **arrays: Any) -> Config:
    """The tiny task with thirty patients."""
    labels = np.arange(90) % 3
    clouds = np.random.default_rng(5).normal(size=(90, 8)) + 2.5 * np.eye(3, 8)[labels]
    own: dict[str, Any] = {"patient": PATIENTS, "test_x": clouds.astype(np.float32), "test_y": labels}
    kept = {name: array for name, array in (own | arrays).items() if array is not None}
    file = write_config(folder, data=write_data(folder, **kept))
    users = ["data.unit=patient", "data.most_records=3", "training.batch=10", "training.micro_batch=16"]
    return load_config(file, [*users, *changes])


def test_made_up_users_have_1_to_50_images() -> None:
    sizes = np.unique(made_up_users(), return_counts=True)[1]
    assert (sizes.min(), sizes.max(), sizes.sum()) == (1, 50, 12_000)
    assert 400 < len(sizes) < 550


def test_a_run_speaks_of_users_and_its_claim_stands(tmp_path: Path) -> None:
    outcome = train(config(tmp_path), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert run.many == "people"
    assert outcome.records == run.units == 30
    statement = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert statement["unit"].startswith("one person with all records")
    assert statement["neighbours"]["people"] == run.units
    assert "records" not in statement["neighbours"]
    assert "private" not in run.split
    assert verify(tmp_path / "run").stands
    found = audit_run(
        open_run(tmp_path / "run"), confidence=0.999, one_run_canaries=0, progress=lambda *_: None
    )
    assert found.verdict == "consistent", str(found)


def test_explain_speaks_of_users(tmp_path: Path) -> None:
    assert explain_config(config(tmp_path)).unit == "user"


def test_a_unit_changed_on_resume_is_refused(tmp_path: Path) -> None:
    train(config(tmp_path), tmp_path / "run")
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(LabError, match="another config"):
        train(config(tmp_path, "data.most_records=4"), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "arrays", "said"),
    [
        ("data.unit=patien", {"patient": None}, "no such column"),
        ("data.most_records=0", {}, "most_records"),
        ("training.batch=31", {}, "exceeds the 30 private users"),
        ("data.public=5", {}, "come with the data"),
        ("data.seed=0", {"patient": PATIENTS[1:]}, "user of each row"),
        ("data.seed=0", {"patient": np.where(PATIENTS == 3, np.nan, PATIENTS)}, "no user for some records"),
    ],
)
def test_bad_units_are_refused(change: str, arrays: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        train(config(tmp_path, change, **arrays), tmp_path / "run")
    assert not (tmp_path / "run" / "ledger.jsonl").exists()


def test_a_unit_without_a_bound_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="unit and most_records together"):
        load_config(write_config(tmp_path), ["data.unit=patient"])


def test_the_linear_probe_protects_users(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="30 records"):
        outcome = train(config(tmp_path, "method.name=quiet"), tmp_path / "run")
    assert (outcome.records, outcome.covered) == (30, True)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").description["people"] == 30
    with pytest.raises(LabError, match="averages the records of a user"):
        train(load_config(tmp_path / "run" / "config.toml", ["data.pooled=sum"]), tmp_path / "other")

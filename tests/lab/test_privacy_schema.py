"""`privacy.json` fits the JSON Schema that ships with the package, whatever made the run."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from quietgrad.accounting.chain import KEY_VARIABLE
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.federated import train_federated
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

SCHEMA = json.loads((files("quietgrad.lab.run.statement") / "privacy.schema.json").read_text())


def problems(statement: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(SCHEMA).iter_errors(statement)]


def stated(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "privacy.json").read_text())
    return loaded


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "changes",
    [
        ["training.epochs=0.2"],
        ["method.name=quiet"],
        ["privacy.noise_multiplier=0", "training.epochs=0.2"],
        ["method.name=gip", "method.group_size=8", "training.epochs=0.2"],
    ],
    ids=["dp_sgd", "linear probe", "not private", "gip"],
)
def test_the_statement_of_a_run_fits(changes: list[str], tmp_path: Path) -> None:
    train(load_config(write_config(tmp_path), changes), tmp_path / "run")
    assert problems(stated(tmp_path / "run")) == []


def test_a_federated_statement_and_a_signed_one_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    changes = ["federated.clients=12", "training.batch=4", "training.epochs=1", "about.who=A. Officer"]
    config = load_config(write_config(tmp_path), changes)
    train_federated(config, tmp_path / "run", progress=lambda *_: None)
    statement = stated(tmp_path / "run")
    assert problems(statement) == []
    assert statement["about"]["who"] == "A. Officer"
    assert len(statement["about"]["data_hash"]) == len(statement["signature"]) == 64


def test_a_statement_that_says_less_or_more_does_not_fit(tmp_path: Path) -> None:
    train(load_config(write_config(tmp_path), ["training.epochs=0.2"]), tmp_path / "run")
    statement = stated(tmp_path / "run")
    assert statement["about"]["data_hash"] is None, "an open hash of private records tells of one of them"
    assert problems({key: value for key, value in statement.items() if key != "claim"})
    assert problems({**statement, "claim": {**statement["claim"], "epsilon": -1.0}})
    assert problems({**statement, "extra": 1})

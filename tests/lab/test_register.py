"""`quietgrad ledger`: runs of one data set are found and added up, searches and unfinished runs too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad.accounting import epsilon
from quietgrad.lab.cli.app import app
from quietgrad.lab.compare.register import registers, together
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.federated import train_federated
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one file, the second of them deeper, a federated one and one on other data."""
    folder = tmp_path_factory.mktemp("register")
    quick = ["training.epochs=0.2", "about.who=A. Officer"]
    train(load_config(write_config(folder), quick), folder / "runs" / "first")
    train(
        load_config(write_config(folder), [*quick, "privacy.epsilon=1"]), folder / "runs" / "deep" / "second"
    )
    clients = ["federated.clients=12", "training.batch=4", "training.epochs=1"]
    train_federated(
        load_config(write_config(folder), clients), folder / "runs" / "clients", progress=lambda *_: None
    )
    return folder / "runs"


def test_runs_of_one_data_set_are_composed_and_units_are_kept_apart(house: Path) -> None:
    found = {register.unit: register for register in registers([house, house / "deep"])}
    assert set(found) == {"record", "client"}
    assert [Path(run.folder).name for run in found["record"].runs] == ["second", "first"]
    plans = [phase for name in ("first", "deep/second") for phase in read_run(house / name).ledger.plan or ()]
    assert found["record"].epsilon == pytest.approx(epsilon(plans, 1e-5))
    assert 3.0 < found["record"].epsilon <= 4.0


def test_a_private_search_is_added_with_its_delta(house: Path) -> None:
    plain, other = read_run(house / "first"), read_run(house / "deep" / "second")
    tuning = plain.config.tuning.model_copy(update={"on": "private", "mean_tries": 4.0})
    searched = replace(plain, epsilon=7.0, config=plain.config.model_copy(update={"tuning": tuning}))
    total, delta = together([searched, other])
    assert total == pytest.approx(7.0 + other.epsilon)
    assert delta == pytest.approx(2e-5)


def test_the_command_prints_the_register(house: Path) -> None:
    done = CliRunner().invoke(app, ["ledger", str(house)])
    assert done.exit_code == 0, done.output
    assert "All 2 together" in done.stdout
    assert "Officer" in done.stdout
    listed = json.loads(CliRunner().invoke(app, ["ledger", str(house), "--json"]).stdout)
    assert sum(len(register["runs"]) for register in listed) == 3


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["ledger", str(tmp_path)])
    assert done.exit_code == 2
    assert "no run below" in done.stderr

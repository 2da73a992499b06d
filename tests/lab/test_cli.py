"""The command line as a user meets it: own data, JSON, and options that cannot change unnoticed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from quietgrad._sampling.batch import Batch
from quietgrad._sampling.batches import PoissonBatches
from quietgrad.lab.cli.app import app
from quietgrad.lab.run.presets import presets
from quietgrad.lab.run.recommendation import BIAS
from tests.lab.tiny import CONFIG, write_config

runner = CliRunner()

OPTIONS = {
    "train": ["config", "--set", "--out", "--resume", "--data-dir", "--device", "--json", "--debug"],
    "federated": ["config", "--set", "--out", "--resume", "--data-dir", "--json", "--debug"],
    "compare": [
        "config",
        "--set",
        "--methods",
        "--seeds",
        "--epsilons",
        "--out",
        "--data-dir",
        "--private-only",
        "--json",
        "--debug",
    ],
    "budget": [
        "--examples",
        "--batch",
        "--rate",
        "--epochs",
        "--steps",
        "--delta",
        "--epsilon",
        "--advantage",
        "--found",
        "--at-false-positives",
        "--noise",
        "--method",
        "--bands",
        "--at-most",
        "--once-an-epoch",
        "--split",
        "--accountant",
        "--plot",
        "--json",
        "--debug",
    ],
    "explain": ["config", "--set", "--layers", "--data-dir", "--json", "--debug"],
    "report": ["runs", "--out", "--json", "--debug"],
    "data": ["--data-dir", "--json", "--debug"],
    "configs": ["names", "--out", "--json", "--debug"],
    "audit": ["run", "--confidence", "--canaries", "--data-dir", "--json", "--debug"],
    "verify": ["run", "--json", "--debug"],
    "ledger": ["folders", "--json", "--debug"],
    "columns": ["file", "--out", "--json", "--debug"],
    "predict": ["run", "file", "--out", "--keep", "--threshold", "--json", "--debug"],
    "export": ["run", "--onnx", "--safetensors", "--hf", "--out", "--json", "--debug"],
    "tune": [
        "config",
        "--on",
        "--set",
        "--methods",
        "--tries",
        "--out",
        "--data-dir",
        "--json",
        "--debug",
    ],
    "papers": ["name", "entry", "--scale", "--jobs", "--minutes", "--out", "--data-dir", "--json", "--debug"],
}
"""The frozen command line. Adding an option is a minor release, changing or removing one a major release."""


def test_commands_and_options_are_the_frozen_ones() -> None:
    group = get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    found = {
        name: [param.opts[0] if param.param_type_name == "option" else param.name for param in command.params]
        for name, command in group.commands.items()
    }
    assert found == OPTIONS


def test_own_npz_with_three_classes_trains_from_a_config_of_under_15_lines(tmp_path: Path) -> None:
    assert len(CONFIG.splitlines()) <= 15
    config = write_config(tmp_path)
    done = runner.invoke(
        app, ["train", str(config), "--out", str(tmp_path / "run"), "--set", "training.epochs=12", "--json"]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["accuracy"] > 0.5
    assert result["epsilon"] <= 3.0
    assert result["covered"]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "seals.json",
        "config.toml",
        "privacy.json",
        "model_card.md",
        "run.json",
        "versions.json",
        "split.json",
        "ledger.jsonl",
        "checkpoint.pt",
        "model.pt",
        "results.json",
        "report.html",
    }


def test_set_changes_are_written_back_resolved(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    changes = [
        "--set",
        "training.epochs=0.2",
        "--set",
        "method.name=random_freeze",
        "--set",
        "method.freeze=0.5",
    ]
    done = runner.invoke(app, ["train", str(config), "--out", str(tmp_path / "run"), *changes])
    assert done.exit_code == 0, done.output
    resolved = (tmp_path / "run" / "config.toml").read_text()
    assert 'name = "random_freeze"' in resolved
    assert "freeze = 0.5" in resolved
    assert "epochs = 0.2" in resolved


def test_data_lists_what_is_found_and_how_to_get_the_rest() -> None:
    done = runner.invoke(app, ["data", "--json"])
    assert done.exit_code == 0
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert listed["embedded"]["folder"] == "inside the package"
    assert {"mnist", "fashion-mnist", "cifar10", "svhn", "sst2"} <= set(listed)
    assert all(entry["how_to_get"] for entry in listed.values())
    printed = runner.invoke(app, ["data"], env={"COLUMNS": "60", "QUIETGRAD_DATA": ""}).output
    assert all(kind in printed for kind in ("CSV", "Parquet", ".npz"))
    missing = [entry for entry in listed.values() if entry["folder"] is None]
    assert all(entry["how_to_get"] in printed for entry in missing), "no address is cut"


def test_explain_names_the_algorithm_of_each_layer_and_the_noise_of_each_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    original = PoissonBatches.__iter__

    def watched(batches: PoissonBatches) -> Iterator[Batch]:
        drawn.append(len(batches.dataset))  # type: ignore[arg-type]
        return original(batches)

    monkeypatch.setattr(PoissonBatches, "__iter__", watched)
    done = runner.invoke(app, ["explain", str(write_config(tmp_path)), "--json"])
    assert done.exit_code == 0, done.output
    assert drawn
    assert all(records <= 48 for records in drawn), "only the fifth that is for testing"
    printed = json.loads(done.stdout)
    parameters = printed["parameters"]
    assert [layer["layer"] for layer in printed["layers"]] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert all(layer["algorithm"] for layer in printed["layers"])
    assert "no output moved" in printed["independence"]
    methods = {method["method"]: method for method in printed["methods"]}
    assert methods["dp_sgd"]["dimension"] == parameters
    assert methods["random_freeze"]["dimension"] < parameters
    assert methods["random_freeze"]["noise"] < methods["dp_sgd"]["noise"]
    expected = methods["dp_sgd"]["noise_multiplier"] * parameters**0.5
    assert abs(methods["dp_sgd"]["noise"] / expected - 1) < 0.3
    assert "public data" in methods["gep"]["problem"]
    assert methods["quiet"]["noise_to_signal"] < methods["dp_sgd"]["noise_to_signal"]
    assert printed["recommendation"].startswith("Try the private linear probe first")
    assert set(BIAS) == {"quiet", *presets()}


def test_explain_prints_tables(tmp_path: Path) -> None:
    shown = runner.invoke(app, ["explain", str(write_config(tmp_path)), "--layers"]).output
    assert shown.startswith("Try the private linear probe first")
    assert "bias" in shown
    assert "dp_sgd" in shown
    assert "1.weight" in shown
    assert "Not here: gep: needs public data" in shown

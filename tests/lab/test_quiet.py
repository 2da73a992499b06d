"""`method = "quiet"`: a config of five lines becomes a run like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quietgrad._linear_probe.rule import PrivacyWarning
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.cli.app import app
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.linear_probe_preview import explain_linear_probe
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

QUIET = """\
[data]
name = "{data}"
test = 48
[privacy]
epsilon = 3.0
[method]
name = "quiet"
"""


def test_a_run_without_public_data_pays_for_its_moments(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, text=QUIET))
    outcome = train(config, tmp_path / "run")
    assert outcome.epsilon == pytest.approx(3.0, abs=2e-3)
    assert outcome.covered
    assert outcome.accuracy > 0.7
    ledger = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert ledger.count == 2 + outcome.steps
    assert list(ledger.description["statistics"]) == ["mean", "moments"]
    assert json.loads((tmp_path / "run" / "results.json").read_text())["method"] == "quiet"


def test_public_data_need_no_statistics(tmp_path: Path) -> None:
    text = QUIET.replace("[privacy]", "public = 30\n[privacy]")
    outcome = train(load_config(write_config(tmp_path, text=text)), tmp_path / "run")
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").count == outcome.steps


def test_a_finished_run_is_resumed_without_a_second_release(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, text=QUIET))
    once = train(config, tmp_path / "run")
    again = train(config, tmp_path / "run", resume=True)
    assert again.accuracy == once.accuracy
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").count == 2 + once.steps


def test_products_of_features_are_kept_for_a_resumed_run(tmp_path: Path) -> None:
    text = QUIET.replace("[privacy]", "public = 30\n[privacy]")
    config = load_config(write_config(tmp_path, text=text), ["method.products=true"])
    once = train(config, tmp_path / "run")
    assert train(config, tmp_path / "run", resume=True).accuracy == once.accuracy
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").count == once.steps


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method.moment='private'", "Unknown key 'method.moment' .did you mean 'moments'"),
        ("method.moments='public'", "needs public data"),
        ("method.moments='synthetic'", "makes up images"),
        ("method.moments='mixed'", "makes up images"),
        ("method.mirrored=true", "is for images"),
        ("method.products=true", "needs public or made-up images"),
        ("training.warm_start='public'", "starts from zero"),
    ],
)
def test_what_it_cannot_do_is_said(tmp_path: Path, change: str, said: str) -> None:
    config = load_config(write_config(tmp_path, text=QUIET), [change])
    with pytest.raises(LabError, match=said):
        train(config, tmp_path / "run")


def test_explain_says_the_joint_plan(tmp_path: Path) -> None:
    file = write_config(tmp_path, text=QUIET)
    explained = explain_linear_probe(load_config(file))
    assert explained.epsilon == pytest.approx(3.0, abs=2e-3)
    assert [release.name for release in explained.releases] == ["mean", "moments", "training"]
    assert sum(release.share for release in explained.releases) == pytest.approx(1.0)
    outcome = train(load_config(file), tmp_path / "run")
    assert [release.times for release in explained.releases] == [1, 1, outcome.steps]
    assert explained.releases[-1].noise_multiplier == outcome.noise_multiplier
    said = CliRunner().invoke(app, ["explain", str(file)])
    assert said.exit_code == 0
    assert all(word in said.output for word in ("moments", "training", "one plan", "effective dimensions"))


def test_too_few_records_are_warned_of_with_the_number_it_takes(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, text=QUIET), ["privacy.epsilon=0.01"])
    assert "It takes about" in explain_linear_probe(config).remarks[0]
    with pytest.warns(PrivacyWarning, match="It takes about"):
        train(config, tmp_path / "run")


def test_fewer_public_records_than_directions_are_said(tmp_path: Path) -> None:
    text = QUIET.replace("[privacy]", "public = 4\n[privacy]")
    explained = explain_linear_probe(load_config(write_config(tmp_path, text=text)))
    assert explained.directions == 3
    assert "4 public records have 3 directions" in explained.remarks[0]


def test_a_fixed_noise_multiplier_is_refused(tmp_path: Path) -> None:
    text = QUIET.replace("epsilon = 3.0", "noise_multiplier = 1.0")
    with pytest.raises(LabError, match=r"Give privacy\.epsilon"):
        train(load_config(write_config(tmp_path, text=text)), tmp_path / "run")

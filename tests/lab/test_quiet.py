"""`method = "quiet"`: a config of four lines becomes a run like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

QUIET = """\
[data]
name = "{data}"
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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("method.moment='private'", "Unknown key 'method.moment' .did you mean 'moments'"),
        ("method.moments='public'", "needs public data"),
        ("method.moments='synthetic'", "makes up images"),
        ("training.warm_start='public'", "starts from zero"),
    ],
)
def test_what_it_cannot_do_is_said(tmp_path: Path, change: str, said: str) -> None:
    config = load_config(write_config(tmp_path, text=QUIET), [change])
    with pytest.raises(LabError, match=said):
        train(config, tmp_path / "run")


def test_a_fixed_noise_multiplier_is_refused(tmp_path: Path) -> None:
    text = QUIET.replace("epsilon = 3.0", "noise_multiplier = 1.0")
    with pytest.raises(LabError, match=r"Give privacy\.epsilon"):
        train(load_config(write_config(tmp_path, text=text)), tmp_path / "run")

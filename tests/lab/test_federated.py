"""`quietgrad federated`: rounds over many clients, with resume, results and bytes."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.cli.app import app
from quietgrad.lab.errors import LabError
from quietgrad.lab.report import write_report
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.config_sections import FederatedConfig
from quietgrad.lab.run.federated import split_records, train_federated
from quietgrad.lab.run.statement.verification import verify
from tests.lab.tiny import write_config

SMALL = ["federated.clients=12", "training.batch=4", "training.epochs=2", "training.checkpoint_every=1"]


def trained(folder: Path, *changes: str, **options: Any) -> Any:
    config = load_config(write_config(folder), [*SMALL, *changes])
    return train_federated(config, folder / "run", progress=lambda *_: None, **options)


def test_a_run_leaves_results_weights_and_a_true_ledger(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    options = [part for change in SMALL for part in ("--set", change)]
    result = CliRunner().invoke(
        app, ["federated", str(file), *options, "--out", str(tmp_path / "run"), "--json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (found["rounds"], found["clients"]) == (6, 12)
    assert found["epsilon"] <= 3.0
    assert found["up_per_client"] == 4 * (8 * 16 + 16 + 16 * 3 + 3)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").count == 6
    assert (tmp_path / "run" / "model.pt").exists()
    assert "12 clients" in (tmp_path / "run" / "report.html").read_text()


def test_report_statement_and_verdict_speak_of_clients(tmp_path: Path) -> None:
    trained(tmp_path)
    run = tmp_path / "run"
    assert verify(run).stands, verify(run).problems
    said = json.loads((run / "privacy.json").read_text())
    assert said["neighbours"]["clients"] == 12
    split = json.loads((run / "split.json").read_text())
    assert split["clients"] == 12
    assert "private" not in split
    assert said["unit"].startswith("one client with all records")
    expected = {"kind": "poisson", "rate": 4 / 12, "expected_batch": 4.0, "steps": 6}
    assert said["sampling"].items() >= expected.items()
    assert "each client" in said["sampling"]["said"]
    page = html.unescape(re.sub(r"<[^>]+>", " ", write_report([run]).read_text()))
    for sentence in (
        said["neighbours"]["said"],
        *said["assumptions"],
        "What was sent",
        "Each of the 12 clients",
    ):
        assert sentence in page
    said["unit"] = "one record"
    (run / "privacy.json").write_text(json.dumps(said))
    assert not verify(run).stands


def test_freezing_cuts_what_clients_send(tmp_path: Path) -> None:
    frozen = trained(tmp_path, "method.name=random_freeze", "method.freeze=0.9")
    assert frozen.up_per_client < 0.12 * 4 * (8 * 16 + 16 + 16 * 3 + 3)


def test_bytes_tell_nothing_of_who_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    for drawn in ([], list(range(12))):
        monkeypatch.setattr(PoissonSampler, "draw", lambda _, drawn=drawn: drawn)
        folder = tmp_path / str(len(drawn))
        folder.mkdir()
        found = trained(folder)
        sent.append((found.megabytes_up, found.megabytes_down, found.up_per_client, found.down_per_client))
    assert (sent[0][0], sent[0][2]) == (sent[1][0], sent[1][2])
    # What goes down is shortened by what the released weights are, which is public.
    assert sent[0][1] == pytest.approx(sent[1][1], rel=0.02)
    assert sent[0][0] == pytest.approx(6 * 4 * sent[0][2] / 1e6)


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    def stop(done: int, *_: Any) -> None:
        if done == 2:
            raise KeyboardInterrupt

    config = load_config(write_config(tmp_path), SMALL)
    with pytest.raises(KeyboardInterrupt):
        train_federated(config, tmp_path / "run", progress=stop)
    spent = Ledger.read(tmp_path / "run" / "ledger.jsonl").count
    assert spent == 2
    train_federated(config, tmp_path / "run", resume=True, progress=lambda *_: None)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").count == 6
    with pytest.raises(LabError, match="another config"):
        trained(tmp_path, "federated.clients=13", resume=True)


def test_clients_by_class_have_few_classes_and_all_records_are_given_out() -> None:
    labels = torch.arange(1000) % 10
    for split, most in (("iid", 10), ("class", 4)):
        parts = split_records(labels, FederatedConfig(clients=50, split=split), seed=0)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(1000))
        assert max(len(labels[part].unique()) for part in parts) <= most


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("federated.clients=500", "some clients would have none"),
        ("training.batch=13", "exceeds the 12 clients"),
        ("federated.split=daily", "federated.split"),
    ],
)
def test_bad_federations_are_refused(change: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        trained(tmp_path, change)
    assert not (tmp_path / "run" / "ledger.jsonl").exists()

"""Tuning: free on data that is not private and never worse there, resumable; on private data it states its price."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.rdp import repeat_and_select
from quietgrad.lab.cli.app import app
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import load_config, parse_config
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.task import load_task
from quietgrad.lab.tune.private import draw_count
from quietgrad.lab.tune.search_space import SearchSpace
from quietgrad.lab.tune.stand_in import public_stand_in, synthetic_stand_in
from tests.lab.tiny import write_config

runner = CliRunner()


def tune(*options: object) -> dict[str, Any]:
    done = runner.invoke(app, ["tune", *map(str, options), "--json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_badly_tuned_config_is_improved_on_made_up_data_and_the_search_goes_on(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    bad = ["--set", "training.lr=0.06", "--set", "method.clip=0.11", "--set", "training.epochs=4"]
    out = tmp_path / "tune"
    first = tune(config, "--on", "synthetic", *bad, "--tries", 3, "--out", out)
    assert first["tries"] == 3
    found = tune(config, "--on", "synthetic", *bad, "--tries", 8, "--out", out)
    assert found["tries"] == 8
    assert found["epsilon"] == 0.0
    assert found["accuracy"] >= first["accuracy"] >= first["own_accuracy"] == found["own_accuracy"]
    assert found["accuracy"] > found["own_accuracy"] + 0.1
    chosen = load_config(out / "config.toml")
    assert chosen.tuning.model_dump() == {"on": "synthetic", "tries": 8, "mean_tries": None}
    assert chosen.privacy == load_config(config).privacy
    other = runner.invoke(app, ["tune", str(config), "--on", "synthetic", "--out", str(out)])
    assert other.exit_code == 2
    assert "another config" in other.stderr


def test_stand_ins_have_the_tasks_size_and_shape_and_none_of_its_records() -> None:
    parts = load_task(parse_config({"data": {"private": 700, "test": 50, "public_labels": True}}))
    records = {row.numpy().tobytes() for row in parts.private.tensors[0]}
    for make in (public_stand_in, synthetic_stand_in):
        found = make(parts, 0)
        assert len(found.private) == 700
        assert found.private.tensors[0].shape[1:] == parts.input_shape
        assert set(found.private.tensors[1].tolist()) <= set(range(10))
        assert not records & {row.numpy().tobytes() for row in found.private.tensors[0]}
    public = public_stand_in(parts, 0)
    trained = {row.numpy().tobytes() for row in public.private.tensors[0]}
    assert len(trained) == len(public.test) == 100
    assert not trained & {row.numpy().tobytes() for row in public.test.tensors[0]}


def test_without_labelled_public_data_the_remedy_is_named(tmp_path: Path) -> None:
    done = runner.invoke(
        app, ["tune", str(write_config(tmp_path)), "--on", "public", "--out", str(tmp_path / "t")]
    )
    assert done.exit_code == 2
    assert "--on synthetic" in done.stderr


def test_a_private_search_claims_the_price_of_all_its_tries_and_leaves_only_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quietgrad.lab.tune.private.draw_count", lambda _: 3)
    config, out = write_config(tmp_path), tmp_path / "tune"
    found = tune(config, "--on", "private", "--tries", 5, "--set", "training.epochs=1", "--out", out)
    assert {path.name for path in out.iterdir()} == {"best"}
    plan = Ledger.read(out / "best" / "ledger.jsonl").plan or ()
    assert found["epsilon"] == pytest.approx(repeat_and_select(plan, 1e-5, 5.0))
    assert found["epsilon"] > 3.0
    claim = json.loads((out / "best" / "privacy.json").read_text())["claim"]
    assert claim["epsilon"] == found["epsilon"]
    assert verify(out / "best").stands
    assert "5 on average" in (out / "best" / "model_card.md").read_text()
    again = tune(config, "--on", "private", "--tries", 5, "--set", "training.epochs=1", "--out", out)
    assert again == found


def test_the_number_of_private_tries_has_its_mean_and_its_distribution() -> None:
    counts = torch.tensor([draw_count(4.0) for _ in range(20_000)], dtype=torch.float64)
    assert float(counts.mean()) == pytest.approx(4.0, abs=5 * float(counts.std()) / math.sqrt(len(counts)))
    from quietgrad.accounting.rdp import logarithmic_gamma

    gamma = logarithmic_gamma(4.0)
    once = (1 - gamma) / -math.log(gamma)
    assert float((counts == 1).double().mean()) == pytest.approx(once, abs=0.02)
    assert {draw_count(1.0) for _ in range(50)} == {1}


def test_a_private_search_over_methods_or_of_quiet_is_refused(tmp_path: Path) -> None:
    options = ["tune", str(write_config(tmp_path)), "--on", "private", "--methods", "dp_sgd,random_freeze"]
    done = runner.invoke(app, [*options, "--out", str(tmp_path / "t")])
    assert done.exit_code == 2
    assert "one price" in done.stderr
    with pytest.raises(LabError, match="rule decides"):
        SearchSpace(parse_config({}), ("quiet",))

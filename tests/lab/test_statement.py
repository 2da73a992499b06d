"""The privacy statement: it says what the report says, and `verify` believes no folder that was tampered with."""

from __future__ import annotations

import hashlib
import html
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import norm
from typer.testing import CliRunner

from quietgrad.accounting import (
    GaussianEvent,
    JointEvent,
    Phase,
    attack_advantage,
    epsilon,
)
from quietgrad.lab.cli.app import app
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.report import write_report
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.statement import words
from quietgrad.lab.run.statement.recorded import read_run
from quietgrad.lab.run.statement.trade_off import curve_of, curve_of_pair, mu_of
from quietgrad.lab.run.statement.verification import verify
from quietgrad.lab.run.train import train
from quietgrad.methods.gip import MallowsSelection
from tests.lab.tiny import write_config

runner = CliRunner()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("statement")
    train(load_config(write_config(folder)), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def twin(finished: Path) -> Path:
    """Another run of the same config."""
    train(load_config(finished / "config.toml"), finished.parent / "twin")
    return finished.parent / "twin"


def stated(run: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((run / "privacy.json").read_text())
    return loaded


def test_report_model_card_and_statement_say_the_same(finished: Path) -> None:
    statement, card = stated(finished), (finished / "model_card.md").read_text()
    page = html.unescape(re.sub(r"<[^>]+>", " ", write_report([finished]).read_text()))
    said = [
        epsilon_text(statement["claim"]["epsilon"]),
        f"{statement['claim']['delta']:g}",
        statement["neighbours"]["said"],
        statement["accountant"]["said"],
        *statement["assumptions"],
        *statement["not_covered"],
    ]
    for sentence in said:
        assert sentence in page
        assert sentence in card
    for fact in (
        statement["ledger"]["head"],
        f"{statement['neighbours']['records']:,}",
        f"{50 * (1 + statement['claim']['attack_advantage']):.1f}%",
        statement["versions"]["torch"],
        "covered by ε",
    ):
        assert fact in page
    assert statement["weights"]["sha256"][:16] in card


def test_independence_is_stated(finished: Path) -> None:
    statement = stated(finished)
    assert statement["independence"]["checked"]
    assert statement["independence"]["lengths"] == "shapes of micro-batches did not depend on the draw"
    assert any("no record's loss or gradient changed" in line for line in statement["assumptions"])
    run = read_run(finished)
    assert run.results is not None
    left = {"checked": False, "said": "independence not checked", "lengths": "no length was stated"}
    unchecked = replace(run, results={**run.results, "independence": left})
    assert any("independence not checked" in line for line in words.assumptions(unchecked))


def test_the_command_believes_an_untouched_run(finished: Path) -> None:
    done = runner.invoke(app, ["verify", str(finished)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("The claim stands: ε = ")
    assert len(done.stdout.strip().splitlines()) == 1
    assert json.loads(runner.invoke(app, ["verify", str(finished), "--json"]).stdout)["stands"]


def lines(run: Path) -> list[str]:
    return (run / "ledger.jsonl").read_text().splitlines(keepends=True)


def rewrite(run: Path, kept: list[str]) -> None:
    (run / "ledger.jsonl").write_text("".join(kept))


def state(run: Path, path: str, value: Any) -> None:
    statement = stated(run)
    *sections, last = path.split(".")
    place = statement
    for section in sections:
        place = place[section]
    place[last] = value
    (run / "privacy.json").write_text(json.dumps(statement))


def change_weight(run: Path) -> None:
    weights = torch.load(run / "model.pt", weights_only=True)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    torch.save(weights, run / "model.pt")


def edit(run: Path, name: str, old: str, new: str) -> None:
    text = (run / name).read_text()
    assert old in text
    (run / name).write_text(text.replace(old, new, 1))


def flatten_curve(run: Path) -> None:
    points = stated(run)["claim"]["trade_off"]
    useless = [{**point, "false_negative_rate": 1 - point["false_positive_rate"]} for point in points]
    state(run, "claim.trade_off", useless)


def swap(run: Path, twin: Path, name: str) -> None:
    shutil.copy(twin / name, run / name)


def say_twice(run: Path, name: str, said: str) -> None:
    """A first value for people, before the true one, which is what parsers keep."""
    text = (run / name).read_text()
    (run / name).write_text(text.replace("{", "{" + said + ",", 1))


def publish_with(run: Path, old: str, new: str) -> None:
    """Another config, with the statement's hash of it corrected."""
    edit(run, "config.toml", old, new)
    state(run, "config.sha256", hashlib.sha256((run / "config.toml").read_bytes()).hexdigest())


TAMPERED: dict[str, Callable[[Path, Path], Any]] = {
    "a smaller ε": lambda run, _: state(run, "claim.epsilon", 1.0),
    "a smaller δ": lambda run, _: state(run, "claim.delta", 1e-9),
    "a smaller μ": lambda run, _: state(run, "claim.mu", 0.1),
    "a flatter trade-off curve": lambda run, _: flatten_curve(run),
    "fewer assumptions": lambda run, _: state(run, "assumptions", []),
    "tuning that is not the config's": lambda run, _: state(run, "tuning.on", "nothing"),
    "a changed weight": lambda run, _: change_weight(run),
    "another run's weights": lambda run, twin: swap(run, twin, "model.pt"),
    "a lost last release": lambda run, _: rewrite(run, lines(run)[:-1]),
    "a lost first release": lambda run, _: rewrite(run, [lines(run)[0], *lines(run)[2:]]),
    "an edited release": lambda run, _: edit(run, "ledger.jsonl", '"step":3', '"step":4'),
    "another config": lambda run, _: edit(run, "config.toml", "epochs = 2", "epochs = 4"),
    "another unit": lambda run, _: state(run, "unit", "one person with all records"),
    "a budget lowered afterwards, hash and all": lambda run, _: publish_with(
        run, "epsilon = 3.0", "epsilon = 1.0"
    ),
    "people who were not drawn, hash and all": lambda run, _: publish_with(
        run, "[data]", "[data]\nunit = 'person'"
    ),
    "another origin of the public data": lambda run, _: edit(
        run, "split.json", '"public_origin": "', '"public_origin": "open '
    ),
    "public data that had labels": lambda run, _: state(
        run, "public_data.labelled", not stated(run)["public_data"]["labelled"]
    ),
    "other versions": lambda run, _: edit(run, "versions.json", '"torch": "', '"torch": "9'),
    "a remark": lambda run, _: state(run, "remark", "also covers everybody's relatives"),
    "an ε that stands twice": lambda run, _: say_twice(
        run, "privacy.json", '"epsilon": 0.1, "claim": {"epsilon": 0.1}'
    ),
    "a release that stands twice": lambda run, _: say_twice(run, "ledger.jsonl", '"plan":[]'),
    "a kinder model card": lambda run, _: edit(run, "model_card.md", "ε = 3", "ε = 1"),
    "another run's ledger": lambda run, twin: swap(run, twin, "ledger.jsonl"),
    "another run's statement": lambda run, twin: swap(run, twin, "privacy.json"),
    "features of its own": lambda run, _: shutil.copy(run / "model.pt", run / "features.pt"),
    "results not covered": lambda run, _: edit(run, "results.json", '"covered": true', '"covered": false'),
    "no statement": lambda run, _: (run / "privacy.json").unlink(),
    "an unfinished run": lambda run, _: (run / "results.json").unlink(),
}


@pytest.mark.parametrize("change", TAMPERED)
def test_a_tampered_run_is_not_believed(finished: Path, twin: Path, tmp_path: Path, change: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    assert verify(run).stands
    TAMPERED[change](run, twin)
    done = runner.invoke(app, ["verify", str(run)])
    assert done.exit_code == 1
    assert done.stdout.startswith("The claim does NOT stand: ")
    assert len(done.stdout.strip().splitlines()) == 1


def test_a_small_delta_is_not_made_smaller_by_rounding(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), ["training.epochs=0.5", "privacy.delta=1e-10"])
    train(config, tmp_path / "run")
    assert verify(tmp_path / "run").stands
    state(tmp_path / "run", "claim.delta", 1e-30)
    assert not verify(tmp_path / "run").stands


def test_a_run_without_noise_makes_no_claim(tmp_path: Path) -> None:
    text = write_config(tmp_path).read_text().replace("epsilon = 3.0", "noise_multiplier = 0.0")
    (tmp_path / "own.toml").write_text(text)
    train(load_config(tmp_path / "own.toml", ["training.epochs=0.5"]), tmp_path / "run")
    claim = stated(tmp_path / "run")["claim"]
    assert (claim["epsilon"], claim["mu"]) == ("inf", "inf")
    assert all(point["false_negative_rate"] == 0 for point in claim["trade_off"])
    assert "infinite" in verify(tmp_path / "run").said
    assert "**Not private**" in (tmp_path / "run" / "model_card.md").read_text()


def test_with_a_key_a_consistent_forgery_falls_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", "the officer's secret")
    config = load_config(write_config(tmp_path), ["training.epochs=0.5"])
    train(config, tmp_path / "true")
    assert "forgery (keyed)" in verify(tmp_path / "true").said
    monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", "a guess")
    train(config, tmp_path / "forged")
    assert verify(tmp_path / "forged").stands
    monkeypatch.setenv("QUIETGRAD_LEDGER_KEY", "the officer's secret")
    assert not verify(tmp_path / "forged").stands
    state(tmp_path / "true", "unit", "one user")
    assert "not signed" in verify(tmp_path / "true").said


GAUSSIAN = [Phase(event=GaussianEvent(noise_multiplier=1.5), rate=1.0, count=2)]
SAMPLED = [Phase(event=GaussianEvent(noise_multiplier=1.4), rate=1 / 48, count=720)]
SELECTION = MallowsSelection(theta=1e-3, group_size=64, kept=6, groups=20)
JOINT = JointEvent(gaussian=GaussianEvent(noise_multiplier=2.0), selections=(SELECTION,))


def test_without_sampling_curve_and_mu_are_the_gaussians() -> None:
    cost = epsilon(GAUSSIAN, 1e-5)
    mu = mu_of(GAUSSIAN, cost)
    assert mu == pytest.approx(math.sqrt(2) / 1.5)
    for point in curve_of(GAUSSIAN, cost):
        exact = norm.cdf(norm.isf(point["false_positive_rate"]) - mu)
        assert exact - 2e-3 <= point["false_negative_rate"] <= exact + 1e-9


@pytest.mark.parametrize("phases", [SAMPLED, [Phase(event=JOINT, rate=0.05, count=40)]])
def test_mu_bounds_the_curve_and_the_curve_the_advantage(phases: list[Phase]) -> None:
    cost = epsilon(phases, 1e-5)
    mu = mu_of(phases, cost)
    assert mu is not None
    curve = curve_of(phases, cost)
    for point in curve:
        assert norm.cdf(norm.isf(point["false_positive_rate"]) - mu) <= point["false_negative_rate"] + 2e-4
    best = max(1 - point["false_positive_rate"] - point["false_negative_rate"] for point in curve)
    assert best == pytest.approx(attack_advantage(phases), rel=0.05)
    weaker = curve_of_pair(cost, 1e-5)
    for known, unknown in zip(curve, weaker, strict=True):
        assert unknown["false_negative_rate"] <= known["false_negative_rate"] + 1e-3


def test_a_quiet_run_states_its_statistics_and_features_and_is_believed(tmp_path: Path) -> None:
    text = write_config(tmp_path).read_text().replace('name = "dp_sgd"\nclip = 1.0', 'name = "quiet"')
    (tmp_path / "own.toml").write_text(text)
    train(load_config(tmp_path / "own.toml"), tmp_path / "run")
    statement = stated(tmp_path / "run")
    assert len(statement["mechanism"]["plan"]) > 1  # moments first, then the head
    assert statement["features"]["file"] == "features.pt"
    assert verify(tmp_path / "run").stands
    weights = tmp_path / "run" / "features.pt"
    weights.write_bytes(weights.read_bytes() + b"x")
    assert "features.sha256" in verify(tmp_path / "run").said

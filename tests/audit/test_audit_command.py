"""`quietgrad audit RUN`: verdict, JSON, exit code, and clear errors for runs without what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.broken import half_noise
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from quietgrad.lab.run import attack as lab_audit
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.train import train

CONFIG = """
[data]
name = "embedded"
[model]
name = "linear"
[privacy]
{privacy}
[method]
name = "dp_sgd"
[training]
epochs = 0.25
batch = 250
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("runs"), "epsilon = 8.0")


def made(folder: Path, privacy: str) -> Path:
    config = folder / "run.toml"
    config.write_text(CONFIG.format(privacy=privacy))
    train(load_config(config), folder / "run")
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "attacks", "said"),
    [
        ("bands = 4", ["one-run gradient canaries"], "step canaries: left out"),
        ("at_most = 400", ["step canaries", "one-run gradient canaries"], "consistent"),
        ("once_an_epoch = true", [], "once an epoch"),
    ],
)
def test_runs_with_other_participation(option: str, attacks: list[str], said: str, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.format(privacy="epsilon = 8.0") + option + "\n")
    train(load_config(config), tmp_path / "run")
    code, output = invoke(tmp_path / "run")
    assert code == 0, output
    assert said in output
    kept = json.loads((tmp_path / "run" / "audit.json").read_text())
    assert [attack["attack"] for attack in kept["attacks"]] == attacks
    assert all(attack["claimed"] == pytest.approx(8.0, rel=1e-2) for attack in kept["attacks"])
    assert kept["neighbouring_runs"]["passed"]


def invoke(run: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["audit", str(run), "--canaries", "60", *options])
    return result.exit_code, result.output


def test_a_healthy_run(run: Path) -> None:
    code, output = invoke(run)
    assert code == 0, output
    assert "verdict: consistent" in output
    assert "claimed ε = 8" in output
    kept = json.loads((run / "audit.json").read_text())
    assert [attack["attack"] for attack in kept["attacks"]] == ["step canaries", "one-run gradient canaries"]
    assert 0.6 * 8 < kept["attacks"][0]["lower_bound"] <= 8
    assert kept["neighbouring_runs"]["passed"]
    assert kept["membership"]["bound"] < 1
    page = (run / "report.html").read_text()  # made anew: it says what the attacks found
    assert "one-run gradient canaries" in page
    assert "Audit: not made" not in page


def test_a_broken_run_exits_with_1(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_audit, "build_mechanism", lambda *args: half_noise(build_mechanism(*args)))
    code, output = invoke(run, "--json")
    assert code == 1
    assert '"verdict": "violated"' in output


def test_a_non_private_run_is_called_so(tmp_path: Path) -> None:
    code, output = invoke(made(tmp_path, "noise_multiplier = 0.0"))
    assert code == 0, output
    assert "verdict: not private" in output
    assert "the attack should succeed" in output


def test_what_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    code, output = invoke(tmp_path)
    assert code == 2
    assert "no config.toml" in output
    assert str(run) in invoke(run.parent)[1].replace("\n", "")
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_text((run / "config.toml").read_text())
    code, output = invoke(bare)
    assert code == 2
    assert "neither model.pt nor checkpoint.pt" in output
    code, output = invoke(run, "--canaries", "5")
    assert code == 2
    assert "Expected at least" in output

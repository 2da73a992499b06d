"""One run: interrupts, kills and resumes never under-count, and the extras of training do what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from quietgrad._privatizer.explanation import ReleaseReport
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.data import embedded
from quietgrad.lab.run.config import load_config, parse_config
from quietgrad.lab.run.interrupt import Stopped, StopRequest
from quietgrad.lab.run.progress import Reporter
from quietgrad.lab.run.train import noise_to_signal, train
from tests.lab.tiny import write_config

LONG = ["training.epochs=60", "training.checkpoint_every=20"]
"""600 steps of about a millisecond and a sync: time enough to be stopped in."""


def start(config: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    changes = [part for change in LONG for part in ("--set", change)]
    command = [
        sys.executable,
        "-m",
        "quietgrad",
        "train",
        str(config),
        "--out",
        str(out),
        *changes,
        *more,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_steps(run: subprocess.Popen[str], out: Path, steps: int) -> None:
    """Until the ledger holds that many releases and a checkpoint was written."""
    for _ in range(3000):
        ledger = out / "ledger.jsonl"
        if ledger.exists() and ledger.read_bytes().count(b"\n") > steps and (out / "checkpoint.pt").exists():
            return
        assert run.poll() is None, run.stderr and run.stderr.read()
        time.sleep(0.02)
    raise AssertionError("the run did not get so far")


def finish(config: Path, out: Path) -> dict[str, float]:
    run = start(config, out, "--resume", "--json")
    said, errors = run.communicate(timeout=240)
    assert run.returncode == 0, errors
    result: dict[str, float] = json.loads(said)
    return result


@pytest.mark.slow
def test_ctrl_c_stops_between_steps_and_a_resumed_run_costs_what_an_uninterrupted_one_costs(
    tmp_path: Path,
) -> None:
    config, out = write_config(tmp_path), tmp_path / "run"
    run = start(config, out)
    wait_for_steps(run, out, 25)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 130
    assert "Go on with --resume" in errors
    assert "Traceback" not in errors
    stopped = Ledger.read(out / "ledger.jsonl").count
    checkpoint = torch.load(out / "checkpoint.pt", weights_only=True)
    assert checkpoint["private"]["step"] == stopped, "checkpoint and ledger agree: nothing is replayed"
    result = finish(config, out)
    ledger = Ledger.read(out / "ledger.jsonl")
    assert result["steps"] == ledger.count == 480
    assert epsilon(ledger.phases, 1e-5) == pytest.approx(epsilon(ledger.plan or (), 1e-5))
    assert result["epsilon"] == pytest.approx(epsilon(ledger.plan or (), 1e-5))
    assert result["accuracy"] > 0.5  # of 48 test records, chance is a third


@pytest.mark.slow
def test_kill_9_and_resume_count_the_replayed_steps(tmp_path: Path) -> None:
    config, out = write_config(tmp_path), tmp_path / "run"
    run = start(config, out)
    wait_for_steps(run, out, 30)
    run.kill()
    run.communicate()
    before = Ledger.read(out / "ledger.jsonl").count
    saved = torch.load(out / "checkpoint.pt", weights_only=True)["private"]["step"]
    assert saved <= before
    result = finish(config, out)
    ledger = Ledger.read(out / "ledger.jsonl")
    assert ledger.count == 480, "replayed steps use the plan up"
    assert result["steps"] == 480 - (before - saved), "so the model had fewer"
    spent, planned = epsilon(ledger.phases, 1e-5), epsilon(ledger.plan or (), 1e-5)
    assert result["epsilon"] >= spent
    assert spent == pytest.approx(planned)
    assert result["accuracy"] > 0.5  # of 48 test records, chance is a third


class StopsAt(Reporter):
    """Interrupts the run from inside, as Ctrl-C would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("method", ["dp_sgd", "gep", "rgp", "random_freeze", "gip", "top_groups"])
def test_every_method_resumes_from_its_checkpoint(tmp_path: Path, method: str) -> None:
    options = {"gep": {"rank": 4}, "rgp": {"rank": 2}}.get(method, {})
    config = parse_config(
        {
            "data": {"private": 300, "test": 50},
            "model": {"name": "mlp", "hidden": [16]},
            "method": {"name": method, **options},
            "training": {"epochs": 1, "batch": 30, "checkpoint_every": 3},
            "privacy": {"epsilon": 4.0},
        }
    )
    out = tmp_path / "run"
    with pytest.raises(Stopped, match="4 of 10 steps"):
        train(config, out, reporter=StopsAt(4))
    outcome = train(config, out, resume=True)
    assert outcome.steps == Ledger.read(out / "ledger.jsonl").count == 10
    assert outcome.epsilon <= 4.0
    assert [point["step"] for point in outcome.curve] == list(range(1, 11))


def test_an_interrupt_is_one_request_however_many_signals_carry_it() -> None:
    before = signal.getsignal(signal.SIGINT)  # a shell's background jobs start with it ignored
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_the_seed_fixes_the_weights_but_neither_noise_nor_batches(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path), ["training.epochs=0.1"])
    weights = []
    for name in ("one", "two"):
        train(config, tmp_path / name)
        weights.append(torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["model"])
    assert not torch.equal(weights[0]["1.weight"], weights[1]["1.weight"]), "fresh noise in every run"
    assert torch.allclose(weights[0]["1.weight"], weights[1]["1.weight"], atol=0.5), "from the same weights"


def test_a_warm_start_on_labelled_public_data_learns_before_the_first_release(tmp_path: Path) -> None:
    raw = {
        "data": {"private": 300, "test": 500, "public_labels": True},
        "privacy": {"epsilon": 0.05},
        "training": {"epochs": 0.2, "batch": 30, "lr": 1e-6, "warm_start": "public"},
    }
    assert train(parse_config(raw), tmp_path / "run").accuracy > 0.5


def test_cached_scatter_features_train_and_are_recorded(tmp_path: Path) -> None:
    raw = {
        "data": {"private": 200, "test": 40, "public": 8, "features": "scatter"},
        "model": {"name": "feature_linear"},
        "training": {"epochs": 0.5, "batch": 40},
    }
    outcome = train(parse_config(raw), tmp_path / "run")
    assert outcome.parameters == 81 * 7 * 7 * 10 + 10
    assert json.loads((tmp_path / "run" / "split.json").read_text())["features"] == "ScatterNet"


def test_views_are_averaged_before_the_clip(tmp_path: Path) -> None:
    raw = {
        "data": {"private": 200, "test": 40},
        "augment": {"views": 3, "flip": True, "shift": 2},
        "training": {"epochs": 0.5, "batch": 40},
    }
    outcome = train(parse_config(raw), tmp_path / "run")
    assert outcome.steps == 3
    assert outcome.releases[0]["sensitivity"] == 1.0


def test_noise_to_signal_is_the_noise_against_aligned_gradients_at_their_bound() -> None:
    release = ReleaseReport(
        representation="Identity", share=1.0, dimension=400, sensitivity=2.0, std=3.0, noise_norm=60.0
    )
    assert noise_to_signal([release], batch=10) == pytest.approx(60 / (10 * 2))
    assert noise_to_signal([release, release], batch=10) == pytest.approx(60 / (10 * 2))


def test_embedded_public_labels_are_there_only_for_who_asks() -> None:
    from quietgrad.lab.data import load

    assert embedded().public_labels is None
    labels = load("embedded", public_labels=True).public_labels
    assert labels is not None
    assert np.array_equal(labels.bincount().numpy(), [20] * 10)


def test_averaged_weights_forget_the_first_ones_and_keep_the_last_on_average() -> None:
    from quietgrad.lab.run.averaging import weight_average

    model = torch.nn.Linear(1, 1, bias=False)
    average = weight_average(model, 0.5)
    expected = 0.0
    for step, value in enumerate((4.0, 8.0, 2.0, 6.0)):
        model.weight.data.fill_(value)
        average.update_parameters(model)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = value if step == 0 else decay * expected + (1 - decay) * value
    (averaged,) = average.module.parameters()
    assert averaged.item() == pytest.approx(expected)

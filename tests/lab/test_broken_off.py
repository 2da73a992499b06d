"""Runs that are broken off before their first checkpoint, or in the middle of their start."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.errors import LabError
from quietgrad.lab.run import folder as folders
from quietgrad.lab.run import train as training
from quietgrad.lab.run.checkpoints import Checkpoints, LostSteps
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.federated import train_federated
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.train import train
from tests.lab.tiny import write_config

FEDERATED = ["federated.clients=12", "training.batch=4", "training.epochs=2"]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def never(*_: Any) -> None:
    """Keeps nothing, as if the process had ended before."""
    raise Killed


def federated(config: Any, out: Path, **options: Any) -> Any:
    return train_federated(config, out, progress=lambda *_: None, **options)


@pytest.mark.parametrize("file", ["run.json", "versions.json", "split.json", "config.toml"])
def test_a_start_that_is_broken_off_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """On 0.2: a folder with a config and no split spent its whole budget on --resume, and then failed."""
    config, out = load_config(write_config(tmp_path)), tmp_path / "run"

    def write(path: Path, content: bytes) -> None:
        if path.name == file:
            raise Killed
        path.write_bytes(content)

    with monkeypatch.context() as patched, pytest.raises(Killed):  # noqa: PT012
        patched.setattr(folders, "write_whole", write)
        train(config, out)
    with pytest.raises(LabError, match=r"without --resume"):
        train(config, out, resume=True)
    assert not (out / "ledger.jsonl").exists()
    assert train(config, out).steps == 16


def test_a_folder_that_lacks_a_file_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    config, out = load_config(write_config(tmp_path)), tmp_path / "run"
    train(config, out)
    (out / "split.json").unlink()
    (out / "results.json").unlink()
    with pytest.raises(LabError, match=r"no split\.json"):
        train(config, out, resume=True)


@pytest.mark.parametrize("run", [train, federated])
def test_a_plan_that_is_spent_without_a_checkpoint_does_not_pass_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """On 0.2: both finished "successfully", with the first weights."""
    config = load_config(write_config(tmp_path), FEDERATED if run is federated else [])
    out = tmp_path / "run"
    monkeypatch.setattr(Checkpoints, "save", lambda _: None)
    monkeypatch.setattr(training, "finish", never)
    monkeypatch.setattr("quietgrad.lab.run.federated.finish", never)
    with pytest.raises(Killed):
        run(config, out)
    monkeypatch.undo()
    with (
        pytest.warns(LostSteps, match="spent without a checkpoint"),
        pytest.raises(LabError, match="first ones"),
    ):
        run(config, out, resume=True)
    assert not (out / "results.json").exists()


@pytest.mark.parametrize("run", [train, federated])
def test_what_was_lost_is_said_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    config = load_config(write_config(tmp_path), FEDERATED if run is federated else [])
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "stepped", lambda _, step: never() if step == 3 else None)
        patched.setattr(Checkpoints, "save", lambda _: None)
        with pytest.raises(Killed):
            run(config, out)
    with pytest.warns(LostSteps, match="3 releases"):
        outcome = run(config, out, resume=True)
    planned = Ledger.read(out / "ledger.jsonl").count
    assert (outcome.lost, outcome.steps) == (3, planned - 3)
    assert json.loads((out / "results.json").read_text())["lost"] == 3


def test_checkpoints_come_after_the_first_step_and_at_least_every_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, saved = [1000.0], list[float]()

    def save() -> None:
        saved.append(now[0])
        now[0] += 10.0

    monkeypatch.setattr("quietgrad.lab.run.checkpoints.time.monotonic", lambda: now[0])
    kept = Checkpoints(save, every=1000)
    for step in range(1, 21):
        now[0] += 7.0
        kept.stepped(step)
    assert saved[0] == 1007.0
    waits = [later - earlier - 10.0 for earlier, later in itertools.pairwise(saved)]
    assert waits
    assert max(waits) < 60.0 + 7.0


def test_a_checkpoint_with_one_wrong_bit_is_refused(tmp_path: Path) -> None:
    """On 0.2: torch loaded it, and the run went on from weights that nobody trained."""
    folder = RunFolder(tmp_path)
    weights = {"weight": torch.randn(50, 50)}
    folder.save("features.pt", weights)
    file = tmp_path / "features.pt"
    whole = file.read_bytes()
    assert torch.equal(torch.load(file, weights_only=True)["weight"], weights["weight"])
    for place in range(0, len(whole), 173):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LabError, match="damaged"):
            folder.load("features.pt")
    file.write_bytes(whole)
    assert folder.load("features.pt") is not None


def test_the_checkpoint_of_a_copied_run_does_not_fit(tmp_path: Path) -> None:
    """On 0.2: two copies of a run that both went on had equal chains."""
    config, mine, theirs = load_config(write_config(tmp_path)), tmp_path / "mine", tmp_path / "theirs"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Checkpoints, "stepped", lambda self, step: self.save() if step < 4 else never())
        patched.setattr(training, "finish", never)
        with pytest.raises(Killed):
            train(config, mine)
    shutil.copytree(mine, theirs)
    for out in (mine, theirs):
        train(config, out, resume=True)
    shutil.copy(theirs / "checkpoint.pt", mine / "checkpoint.pt")
    (mine / "results.json").unlink()
    with pytest.raises(ValueError, match="another run"):
        train(config, mine, resume=True)


QUIET = """\
[data]
name = "{data}"
test = 48
[privacy]
epsilon = 3.0
[method]
name = "quiet"
moments = "private"
"""


@pytest.mark.parametrize("lost", [("mean",), ("moments",), ()])
def test_a_probe_that_is_killed_among_its_statistics_can_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[str, ...]
) -> None:
    """On 0.2: a run killed after its first statistic could only start anew, and pay again."""
    config, out = load_config(write_config(tmp_path, text=QUIET)), tmp_path / "run"

    def save(folder: RunFolder, name: str, state: dict[str, Any]) -> None:
        if name == "features.pt" or set(lost) & set(state):
            never()
        plain(folder, name, state)

    plain = RunFolder.save
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", save)
        with pytest.raises(Killed):
            train(config, out)
    with pytest.warns(LostSteps, match="the run goes without it") if lost else contextlib.nullcontext():
        outcome = train(config, out, resume=True)
    ledger = Ledger.read(out / "ledger.jsonl")
    assert outcome.lost == len(lost)
    assert ledger.count == 2 + outcome.steps, "a statistic was paid for twice, or not at all"
    assert outcome.epsilon == pytest.approx(3.0, abs=2e-3)
    assert outcome.accuracy > (0.5 if lost else 0.7)

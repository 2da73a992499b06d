"""Bad input through the command line: one clear line with the remedy, exit code 2, nothing overwritten."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from quietgrad.lab.cli.app import app
from tests.lab.tiny import CONFIG, contents, write_config, write_data

runner = CliRunner()


def refused(*arguments: str | Path) -> str:
    """The one line that a user sees."""
    result = runner.invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, (result.output, result.exception)
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    return lines[0]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, its data and a short run."""
    folder = tmp_path_factory.mktemp("trained")
    changes = ["--out", str(folder / "run"), "--set", "training.epochs=0.3"]
    done = runner.invoke(app, ["train", str(write_config(folder)), *changes])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """The folder of a short run, its config beside it; a copy for each test."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("trainig.lr=1", ["Unknown key 'trainig'", "did you mean 'training'"]),
        ("training.learning_rate=1", ["Unknown key 'training.learning_rate'", "did you mean"]),
        ("training.lr=-1", ["training.lr", "greater than 0", "-1"]),
        ("training.optimizer=lion", ["training.optimizer", "'sgd', 'adam' or 'adamw'"]),
        ("method.name=dp_sdg", ["Unknown method 'dp_sdg'", "did you mean 'dp_sgd'"]),
        ("method.clipp=2", ["Unknown key 'method.clipp'", "did you mean 'clip'"]),
        ("method.clip=-1", ["method dp_sgd", "got -1"]),
        (
            "method.clip={schedule = 'Coling', rate = 1}",
            ["Unknown schedule 'Coling'", "did you mean 'Cooling'"],
        ),
        ("model.name=mpl", ["Unknown model='mpl'", "did you mean 'mlp'"]),
        ("model.hiden=[3]", ["Unknown option 'hiden'", "did you mean 'hidden'"]),
        ("data.name=fashion_mnst", ["Unknown data set", "did you mean 'fashion-mnist'"]),
        ("data.name=missing.npz", ["missing.npz does not exist", "Check the path"]),
        ("version=7", ["--set section.key=value"]),
        ("training.batch=100000", ["exceeds the 192 private records", "Lower it"]),
        ("privacy.epsilon=", ["either epsilon or noise_multiplier"]),
        ("data.public=500", ["public=500", "Ask for fewer"]),
        ("method.name=gep", ["needs public data", "data.public"]),
        ("training.warm_start=public", ["needs labels", "data.public_labels"]),
        ("data.features=scatter", ["takes images", "resize"]),
    ],
)
def test_a_wrong_config_is_refused_with_the_remedy(tmp_path: Path, change: str, parts: list[str]) -> None:
    config = write_config(tmp_path)
    if change == "method.name=gep":
        config.write_text(config.read_text().replace("clip = 1.0", "rank = 4"))
    before = contents(tmp_path)
    said = refused("train", config, "--set", change, "--out", tmp_path / "run")
    for part in parts:
        assert part in said
    assert contents(tmp_path) == before, "nothing may be left behind"


def test_a_config_of_another_version_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path, text="version = 2\n" + CONFIG)
    said = refused("train", config, "--out", tmp_path / "run")
    assert "version 2" in said
    assert "Update the file" in said


def test_a_missing_or_broken_config_is_refused(tmp_path: Path) -> None:
    assert "There is no config" in refused("train", tmp_path / "no.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[data\nname=")
    assert "not valid TOML" in refused("train", broken)
    assert "is a folder" in refused("train", tmp_path)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """Tiny files in MNIST's format, changed before they are written."""
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(60, 28, 28), dtype=np.uint8)
    labels = rng.integers(10, size=60).astype(np.uint8)
    files = {
        "train-images-idx3-ubyte": idx(images[:50]),
        "train-labels-idx1-ubyte": idx(labels[:50]),
        "t10k-images-idx3-ubyte": idx(images[50:]),
        "t10k-labels-idx1-ubyte": idx(labels[50:]),
    }
    change(files)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in files.items():
        (raw / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


def truncate(files: dict[str, bytes]) -> None:
    files["train-images-idx3-ubyte"] = files["train-images-idx3-ubyte"][:-100]


def drop(files: dict[str, bytes]) -> None:
    del files["train-labels-idx1-ubyte"]


def mislabel(files: dict[str, bytes]) -> None:
    files["train-labels-idx1-ubyte"] = files["train-labels-idx1-ubyte"][:-1] + bytes([77])


def swap(files: dict[str, bytes]) -> None:
    files["train-labels-idx1-ubyte"] = files["t10k-labels-idx1-ubyte"]


@pytest.mark.parametrize("change", [truncate, drop, mislabel, swap])
def test_damaged_data_files_are_refused(tmp_path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    config = write_config(tmp_path, data="mnist")
    folder = write_mnist(tmp_path / "data", change)
    said = refused("train", config, "--data-dir", folder, "--out", tmp_path / "run")
    assert str(folder) in said
    assert not (tmp_path / "run").exists()


def test_missing_data_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIETGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    said = refused("train", write_config(tmp_path, data="cifar10"), "--out", tmp_path / "run")
    assert "To get it" in said
    assert "not a folder" in refused("data", "--data-dir", tmp_path / "nowhere")


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    labels = np.random.default_rng(0).integers(3, size=240)
    labels[17] = -1
    config = write_config(tmp_path, data=write_data(tmp_path, y=labels))
    assert "some labels are not among 0 to 2" in refused("train", config, "--out", tmp_path / "run")


def test_public_data_that_overlap_test_data_are_refused(tmp_path: Path) -> None:
    stored = np.load(write_data(tmp_path))
    public, labels = stored["x"][:20] + 1, stored["y"][:20]
    data = write_data(tmp_path, public_x=public, test_x=public, test_y=labels)
    config = write_config(tmp_path, data=data)
    said = refused("train", config, "--out", tmp_path / "run", "--set", "data.test=20")
    assert "public data overlap" in said
    assert "Remove them" in said


def test_a_full_disk_is_one_line_and_leaves_the_old_files(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(finished)
    monkeypatch.setattr(os, "fsync", full)
    said = refused("report", finished)
    assert "No space left on device" in said
    assert "Free space" in said
    new = finished.parent / "new"
    assert "No space left" in refused("train", finished.parent / "own.toml", "--out", new)
    assert contents(finished) == before
    assert not (new / "ledger.jsonl").exists()


def test_a_disk_that_fills_up_during_training_keeps_the_run_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = write_config(tmp_path), tmp_path / "run"
    synced, sync = [0], os.fsync

    def soon_full(descriptor: int) -> None:
        synced[0] += 1
        if synced[0] > 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", soon_full)
    assert "No space left" in refused("train", config, "--out", out)
    monkeypatch.undo()
    with pytest.warns(UserWarning, match="1 releases of its plan are spent without a checkpoint"):
        done = runner.invoke(app, ["train", str(config), "--out", str(out), "--resume"])
    assert done.exit_code == 0, done.output


def test_the_folder_of_another_run_is_left_alone(finished: Path) -> None:
    before = contents(finished)
    config = finished.parent / "own.toml"
    said = refused("train", config, "--out", finished)
    assert "holds a run already" in said
    assert "another --out" in said
    said = refused("train", config, "--out", finished, "--resume")
    assert "another config" in said
    assert "single run" in refused("compare", config, "--methods", "dp_sgd", "--out", finished)
    assert contents(finished) == before


def test_resuming_what_is_no_run_is_refused(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    assert "is not a run" in refused("train", config, "--out", tmp_path / "nothing", "--resume")
    assert "under a file" in refused("train", config, "--out", config / "run")


def test_a_checkpoint_of_another_model_is_refused(finished: Path) -> None:
    folder = finished.parent
    other = folder / "other"
    changes = ["--set", "training.epochs=0.3", "--set", "model.hidden=[5]"]
    assert (
        runner.invoke(app, ["train", str(folder / "own.toml"), "--out", str(other), *changes]).exit_code == 0
    )
    shutil.copy(other / "checkpoint.pt", finished / "checkpoint.pt")
    shutil.copy(other / "run.json", finished / "run.json")
    before = contents(finished)
    said = refused("train", finished / "config.toml", "--out", finished, "--resume")
    assert "checkpoint is of another model" in said
    assert contents(finished) == before


def test_a_checkpoint_of_another_run_of_the_same_config_is_refused(finished: Path) -> None:
    other = finished.parent / "other"
    assert runner.invoke(app, ["train", str(finished / "config.toml"), "--out", str(other)]).exit_code == 0
    shutil.copy(other / "checkpoint.pt", finished / "checkpoint.pt")
    said = refused("train", finished / "config.toml", "--out", finished, "--resume")
    assert "another run" in said


class Bomb:
    """Unpickling it would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def test_a_damaged_checkpoint_or_one_that_holds_code_is_refused(finished: Path) -> None:
    checkpoint, config = finished / "checkpoint.pt", finished / "config.toml"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    assert "is damaged" in refused("train", config, "--out", finished, "--resume")
    checkpoint.write_bytes(whole[:100])
    assert "cannot be read" in refused("train", config, "--out", finished, "--resume")
    torch.save(Bomb(finished / "exploded"), checkpoint)
    assert "cannot be read" in refused("train", config, "--out", finished, "--resume")
    assert not (finished / "exploded").exists()


def test_an_edited_ledger_is_refused(finished: Path) -> None:
    ledger = finished / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(lines[:1] + lines[2:]))
    assert "ledger.jsonl" in refused("report", finished)
    assert "ledger.jsonl" in refused("train", finished / "config.toml", "--out", finished, "--resume")


def test_reports_of_what_is_no_run_are_refused(tmp_path: Path) -> None:
    assert "neither a run nor a comparison" in refused("report", tmp_path)
    (tmp_path / "results.json").write_text('{"results": 3}')
    assert "not of a comparison" in refused("report", tmp_path)
    (tmp_path / "results.json").write_text("{")
    assert "cannot be read" in refused("report", tmp_path)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--methods", "dp_sgd,gepp"], "did you mean 'gep'"),
        (["--methods", ","], "at least one name"),
        (["--epsilons", "1,two"], "positive numbers"),
        (["--epsilons", "0"], "positive numbers"),
    ],
)
def test_wrong_options_of_compare_are_refused(tmp_path: Path, options: list[str], part: str) -> None:
    assert part in refused("compare", write_config(tmp_path), *options, "--out", tmp_path / "board")
    assert not (tmp_path / "board").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = runner.invoke(app, ["train", str(tmp_path / "no.toml"), "--debug"])
    assert result.exit_code == 1
    assert result.exception is not None
    assert "There is no config" in str(result.exception)

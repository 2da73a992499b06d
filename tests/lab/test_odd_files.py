"""Files that promise too much, number too high or nest too deep: one line, before anything is released."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from quietgrad.accounting import Ledger
from quietgrad.lab.data.npz import read_npz
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import read_json
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.train import train
from tests.lab.tiny import CONFIG, write_config, write_data


def test_labels_that_are_identifiers_are_refused_without_being_quoted(tmp_path: Path) -> None:
    file = write_data(tmp_path, y=np.array([0, 1] * 119 + [1, 2**40]))
    with pytest.raises(ValueError, match="without gaps") as raised:
        read_npz(file)
    assert str(2**40) not in str(raised.value)


def test_a_header_of_a_trillion_rows_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 8)}
    )
    file = tmp_path / "own.npz"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", header.getvalue())
    with pytest.raises(ValueError, match=r"own\.npz"):
        read_npz(file)


def test_tokens_outside_the_vocabulary_are_refused_before_anything_is_released(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(1, 64, size=(240, 6))
    tokens[7, 3] = 64
    file = write_data(tmp_path, x=tokens, y=np.arange(240) % 2)
    text = CONFIG.replace('name = "mlp"\nhidden = [16]', 'name = "transformer"\nvocabulary = 64')
    with pytest.raises(LabError, match="vocabulary of 64"):
        train(load_config(write_config(tmp_path, data=file, text=text)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    deep = "[" * 100_000
    (tmp_path / "deep.json").write_text(deep)
    (tmp_path / "deep.toml").write_text(f"x = {deep}")
    (tmp_path / "deep.jsonl").write_text(f"{deep}\n")
    with pytest.raises(LabError, match="cannot be read"):
        read_json(tmp_path / "deep.json")
    with pytest.raises(LabError, match="nested too deeply"):
        load_config(tmp_path / "deep.toml")
    with pytest.raises(LabError, match="nested too deeply"):
        load_config(write_config(tmp_path), [f"training.lr={deep}"])
    with pytest.raises(ValueError, match="whole line 1"):
        Ledger.read(tmp_path / "deep.jsonl")

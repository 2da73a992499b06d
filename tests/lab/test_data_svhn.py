"""SVHN's MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from quietgrad.lab.data import DataError, load

RNG = np.random.default_rng(2)


def write(folder: Path, file: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (32, 32, 3, size), dtype=np.uint8)
    labels = np.arange(size, dtype=np.uint8).reshape(-1, 1) % 10 + 1
    savemat(folder / file, {"X": images, "y": labels}, do_compression=True)
    return images, labels


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "SVHN", "train_32x32.mat", 20)
    write(tmp_path / "SVHN", "test_32x32.mat", 10)
    return tmp_path


def test_images_are_turned_upright_and_ten_is_zero(root: Path) -> None:
    images, _ = write(root / "SVHN", "test_32x32.mat", 10)
    inputs, labels = load("svhn", data_dir=root).test.tensors
    assert labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    red = (images[5, 7, 0, 3] / 255 - 0.485) / 0.229
    assert inputs[3, 0, 5, 7].item() == pytest.approx(red, abs=1e-5)


def test_the_extended_set_adds_the_extra_images(root: Path) -> None:
    write(root / "SVHN", "extra_32x32.mat", 30)
    assert len(load("svhn", data_dir=root).private) == 20
    assert len(load("svhn-extended", data_dir=root).private) == 50


def test_the_extended_set_needs_the_extra_file(root: Path) -> None:
    with pytest.raises(DataError, match=r"svhn-extended was not found.*extra_32x32.mat"):
        load("svhn-extended", data_dir=root)


def test_a_cut_file_is_refused(root: Path) -> None:
    path = root / "SVHN" / "train_32x32.mat"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"train_32x32.mat is not a readable MATLAB 5 file"):
        load("svhn", data_dir=root)


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>"])
def test_another_kind_of_file_is_refused(root: Path, content: bytes) -> None:
    (root / "SVHN" / "train_32x32.mat").write_bytes(content)
    with pytest.raises(DataError, match=r"train_32x32.mat is not a readable MATLAB 5 file"):
        load("svhn", data_dir=root)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"digitStruct": np.zeros(3)}, "lacks X"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8)}, "lacks X"),
        ({"X": np.zeros((28, 28, 1, 2), np.uint8), "y": np.ones((2, 1))}, "lacks X"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [11]])}, "some labels are not among"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[1], [0]])}, "some labels are not among"),
        ({"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))}, "2 inputs, labels of shape"),
    ],
)
def test_wrong_content_is_refused(root: Path, content: dict[str, np.ndarray], message: str) -> None:
    savemat(root / "SVHN" / "train_32x32.mat", content)
    with pytest.raises(DataError, match=message):
        load("svhn", data_dir=root)


def test_a_missing_test_file_is_named(root: Path) -> None:
    (root / "SVHN" / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"test_32x32.mat is missing"):
        load("svhn", data_dir=root)

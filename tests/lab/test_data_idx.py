"""MNIST and Fashion-MNIST files: layouts, and every way they can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from quietgrad.lab.data import DataError, find_datasets, load

FASHION_FIRST = (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)
MNIST_FIRST = (5, 0, 4, 1, 9, 2, 1, 3, 1, 4)


def idx_bytes(array: np.ndarray) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def write(
    folder: Path, *, zipped: bool = False, first: tuple[int, ...] = (), train: int = 40, test: int = 10
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for split, size in (("train", train), ("t10k", test)):
        labels = rng.integers(0, 10, size)
        if split == "train":
            labels[: len(first)] = first
        for kind, array in (("images-idx3", rng.integers(0, 256, (size, 6, 5))), ("labels-idx1", labels)):
            content = idx_bytes(array)
            path = folder / f"{split}-{kind}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(content) if zipped else content)
    return folder


def damage(folder: Path, name: str, content: bytes) -> None:
    (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("layout", ["MNIST/raw", "MNIST", "mnist"])
def test_every_layout_is_found(tmp_path: Path, layout: str, zipped: bool) -> None:
    write(tmp_path / layout, zipped=zipped)
    parts = load("mnist", data_dir=tmp_path)
    assert (len(parts.private), len(parts.test), parts.input_shape) == (40, 10, (1, 6, 5))
    assert parts.record["folder"] == str(tmp_path / layout)


@pytest.mark.parametrize(("name", "first"), [("mnist", MNIST_FIRST), ("fashion-mnist", FASHION_FIRST)])
def test_flat_files_are_distinguished_by_their_labels(
    tmp_path: Path, name: str, first: tuple[int, ...]
) -> None:
    write(tmp_path, first=first)
    found = {entry.name for entry in find_datasets(tmp_path) if entry.folder == str(tmp_path)}
    assert found == {name}
    assert load(name, data_dir=tmp_path).private.tensors[1][:10].tolist() == list(first)


def test_flat_files_of_unknown_origin_are_not_guessed(tmp_path: Path) -> None:
    write(tmp_path)
    assert not [entry for entry in find_datasets(tmp_path) if entry.folder == str(tmp_path)]


def test_debian_layout_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "fashion-mnist", zipped=True)
    monkeypatch.setattr("quietgrad.lab.data.catalogue.DEBIAN", tmp_path)
    monkeypatch.delenv("QUIETGRAD_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    assert len(load("fashion-mnist").private) == 40


def test_mislabelled_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "MNIST" / "raw", first=FASHION_FIRST)
    with pytest.raises(DataError, match="holds fashion-mnist, not mnist"):
        load("mnist", data_dir=tmp_path)


def test_pixels_and_labels_are_read_exactly(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist")
    images = np.arange(2 * 30).reshape(2, 6, 5)
    damage(folder, "t10k-images-idx3-ubyte", idx_bytes(images))
    damage(folder, "t10k-labels-idx1-ubyte", idx_bytes(np.array([7, 3])))
    inputs, labels = load("mnist", data_dir=tmp_path).test.tensors
    np.testing.assert_allclose(inputs[:, 0].numpy(), (images / 255 - 0.2860) / 0.3530, atol=1e-6)
    assert labels.tolist() == [7, 3]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist")
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match=r"neither t10k-labels-idx1-ubyte nor .*Download"):
        load("mnist", data_dir=tmp_path)


def test_a_missing_data_set_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"mnist was not found in {tmp_path}.*To get it:"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_the_wrong_length_is_refused(tmp_path: Path, change: int) -> None:
    folder = write(tmp_path / "mnist")
    content = idx_bytes(np.zeros((40, 6, 5)))
    damage(folder, "train-images-idx3-ubyte", content[:-1] if change < 0 else content + b"\0")
    with pytest.raises(DataError, match=r"has \d+ bytes, its header promises \d+. Download it again"):
        load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", bytes((0, 0, 8, 3, 0, 0)), idx_bytes(np.zeros(40))])
def test_wrong_magic_and_cut_headers_are_refused(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "mnist")
    damage(folder, "train-images-idx3-ubyte", content)
    with pytest.raises(DataError, match=r"another kind of file|Download it again"):
        load("mnist", data_dir=tmp_path)


def test_a_cut_gzip_file_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist", zipped=True)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a complete gzip file"):
        load("mnist", data_dir=tmp_path)


def test_a_file_that_only_claims_to_be_gzipped_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist", zipped=True)
    damage(folder, "train-labels-idx1-ubyte.gz", b"<html>not found</html>")
    with pytest.raises(DataError, match="not a complete gzip file"):
        load("mnist", data_dir=tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist")
    damage(folder, "train-labels-idx1-ubyte", idx_bytes(np.full(40, 10)))
    with pytest.raises(DataError, match="some labels are not among 0 to 9"):
        load("mnist", data_dir=tmp_path)


def test_images_and_labels_of_different_number_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "mnist")
    damage(folder, "train-labels-idx1-ubyte", idx_bytes(np.zeros(39)))
    with pytest.raises(DataError, match=r"40 inputs, labels of shape \(39,\)"):
        load("mnist", data_dir=tmp_path)

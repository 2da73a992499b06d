"""A user's own .npz file, and everything that can be wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quietgrad.lab.data import DataError, load

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (50, 8, 8), dtype=np.uint8)
FEATURES = RNG.normal(size=(50, 6))
LABELS = np.arange(50) % 3


def save(folder: Path, **arrays: Any) -> str:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return str(path)


def test_grey_images_of_three_classes(tmp_path: Path) -> None:
    parts = load(save(tmp_path, x=IMAGES, y=LABELS), test=10)
    assert (parts.num_classes, parts.input_shape) == (3, (1, 8, 8))
    assert (len(parts.private), len(parts.public), len(parts.test)) == (40, 0, 10)
    assert float(parts.private.tensors[0].min()) >= -1
    assert float(parts.private.tensors[0].max()) <= 1


def test_features_stay_as_they_are(tmp_path: Path) -> None:
    parts = load(save(tmp_path, x=FEATURES, y=LABELS, test_x=FEATURES[:5] + 1, test_y=LABELS[:5]))
    assert parts.private.tensors[0].dtype == torch.float32
    np.testing.assert_array_equal(parts.private.tensors[0].numpy(), FEATURES.astype(np.float32))
    assert len(parts.test) == 5


def test_tokens_stay_whole_numbers(tmp_path: Path) -> None:
    tokens = RNG.integers(1, 1000, (50, 12)).astype(np.int32)
    parts = load(save(tmp_path, x=tokens, y=LABELS), test=10)
    assert parts.private.tensors[0].dtype == torch.int64


def test_own_public_part_is_used(tmp_path: Path) -> None:
    path = save(tmp_path, x=FEATURES, y=LABELS, public_x=FEATURES[:7] + 9, public_y=LABELS[:7])
    assert load(path, test=10).public_labels is None
    labels = load(path, test=10, public_labels=True).public_labels
    assert labels is not None
    assert labels.tolist() == LABELS[:7].tolist()
    assert len(load(path, test=10, public=3).public) == 3


def test_a_file_in_the_data_folder_is_found_by_its_name(tmp_path: Path) -> None:
    save(tmp_path, x=FEATURES, y=LABELS)
    assert len(load("own.npz", data_dir=tmp_path, test=10).private) == 40


def test_public_data_that_overlap_test_data_are_refused(tmp_path: Path) -> None:
    test = FEATURES[:5] + 1
    path = save(tmp_path, x=FEATURES, y=LABELS, test_x=test, test_y=LABELS[:5], public_x=test[:1])
    with pytest.raises(DataError, match="public data overlap the test data: some inputs"):
        load(path)


WITH_NAN = np.where(FEATURES[3, 3] == FEATURES, np.nan, FEATURES)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": FEATURES}, "no array 'y'. Store"),
        ({"y": LABELS}, "no array 'x'. Store"),
        ({"x": FEATURES, "y": LABELS, "weights": LABELS}, "unknown array 'weights'"),
        ({"x": FEATURES, "y": LABELS[:-1]}, "50 inputs, labels of shape"),
        ({"x": FEATURES, "y": LABELS.astype(float)}, "y has shape .50,. and type float64"),
        ({"x": FEATURES, "y": np.eye(3)[LABELS].astype(int)}, "y has shape .50, 3."),
        ({"x": FEATURES, "y": LABELS - 1}, "some labels are not among 0 to 1"),
        ({"x": FEATURES, "y": LABELS * 0}, "single class"),
        ({"x": FEATURES[:0], "y": LABELS[:0]}, "y has shape .0,."),
        ({"x": WITH_NAN, "y": LABELS}, "NaN or infinite"),
        ({"x": IMAGES[..., None], "y": LABELS}, "Store images as"),
        ({"x": IMAGES.astype(np.int64), "y": LABELS}, "Store uint8 images"),
        ({"x": FEATURES[:, 0], "y": LABELS}, "Store uint8 images"),
        ({"x": FEATURES.astype(str), "y": LABELS}, "Store uint8 images"),
        ({"x": FEATURES, "y": LABELS, "test_x": FEATURES}, "has test_x but no test_y"),
        ({"x": FEATURES, "y": LABELS, "test_y": LABELS}, "has test_y but no test_x"),
        ({"x": FEATURES, "y": LABELS, "public_y": LABELS}, "has public_y but no public_x"),
        ({"x": FEATURES, "y": LABELS, "test_x": FEATURES, "test_y": LABELS + 1}, "some labels are not among"),
        (
            {"x": FEATURES, "y": LABELS, "public_x": FEATURES[:, :5]},
            "public_x has rows of .5,. float32, x of .6,.",
        ),
        ({"x": FEATURES, "y": LABELS, "public_x": IMAGES}, "Store all inputs alike"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(save(tmp_path, **arrays))


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=np.array([object()], dtype=object), y=LABELS)
    with pytest.raises(DataError, match=r"not a readable .npz of plain arrays"):
        load(str(path))


@pytest.mark.parametrize("keep", [0, 10, 400])
def test_a_cut_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = Path(save(tmp_path, x=FEATURES, y=LABELS))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"not a readable .npz"):
        load(str(path))


def test_a_single_array_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    with path.open("wb") as file:
        np.save(file, FEATURES)
    with pytest.raises(DataError, match=r"not a readable .npz"):
        load(str(path))


def test_a_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = Path(save(tmp_path, x=FEATURES, y=LABELS))
    content = bytearray(path.read_bytes())
    content[500] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a readable .npz"):
        load(str(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.npz does not exist"):
        load(str(tmp_path / "none.npz"))


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("1,2\n")
    with pytest.raises(DataError, match=r"no .csv, .tsv, .jsonl, .parquet or .npz file and no folder"):
        load(str(tmp_path / "own.txt"))

"""A user's own folder of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from quietgrad.lab.data import DataError, load

RNG = np.random.default_rng(4)


def write(folder: Path, count: int, *, colour: bool = False, size: tuple[int, int] = (6, 5)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = RNG.integers(0, 256, (*size, 3) if colour else size, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for part, count in (("train", 6), ("test", 2)):
        for name in ("cat", "dog", "eel"):
            write(tmp_path / part / name, count)
    return tmp_path


def test_folders_are_classes(root: Path) -> None:
    write(root / "public", 4)
    parts = load(str(root))
    assert (len(parts.private), len(parts.public), len(parts.test)) == (18, 4, 6)
    assert (parts.num_classes, parts.input_shape) == (3, (1, 6, 5))
    assert parts.test.tensors[1].tolist() == [0, 0, 1, 1, 2, 2]
    assert "cat, dog, eel" in str(parts.record["notes"])


def test_pixels_are_read_exactly(root: Path) -> None:
    stored = np.asarray(Image.open(root / "test" / "cat" / "001.png"))
    read = load(str(root)).test.tensors[0][1, 0].numpy()
    np.testing.assert_allclose(read, stored / 127.5 - 1, atol=1e-6)


def test_one_colour_image_makes_all_rgb(root: Path) -> None:
    write(root / "train" / "cat", 1, colour=True)
    assert load(str(root)).input_shape == (3, 6, 5)


def test_without_train_and_test_the_test_images_are_drawn(root: Path) -> None:
    parts = load(str(root / "train"), test=4)
    assert (len(parts.private), len(parts.test)) == (14, 4)


def test_a_damaged_image_is_named(root: Path) -> None:
    path = root / "train" / "dog" / "003.png"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"003.png is (damaged|not a readable image)"):
        load(str(root))


def test_a_text_with_an_image_name_is_named(root: Path) -> None:
    (root / "train" / "dog" / "notes.png").write_text("hello")
    with pytest.raises(DataError, match=r"notes.png is not a readable image"):
        load(str(root))


def test_images_of_two_sizes_are_refused(root: Path) -> None:
    write(root / "train" / "eel", 1, size=(7, 5))
    with pytest.raises(DataError, match=r"differ in size \(5x7 and 5x6\). Resize"):
        load(str(root))


def test_a_class_without_images_is_refused(root: Path) -> None:
    (root / "train" / "fox").mkdir()
    with pytest.raises(DataError, match=r"fox has no images"):
        load(str(root / "train"))


def test_different_classes_in_train_and_test_are_refused(root: Path) -> None:
    write(root / "test" / "fox", 1)
    with pytest.raises(DataError, match="class 'fox' is in only one of train and test"):
        load(str(root))


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 3)
    with pytest.raises(DataError, match=r"has 0 sub-folders. Put the images of each class"):
        load(str(tmp_path))

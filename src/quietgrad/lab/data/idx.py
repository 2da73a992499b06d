"""MNIST and Fashion-MNIST in the IDX format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.files import plain_or_gzipped, read_bytes, require

NUM_CLASSES = 10
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# The two data sets share file names, shapes and sizes. Their first training labels tell them apart.
FIRST_LABELS = {
    "mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4),
    "fashion-mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5),
}
FOLDERS = {
    "mnist": ("MNIST/raw", "MNIST", "mnist"),
    "fashion-mnist": ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "fashion_mnist"),
}


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """The uint8 array of an IDX file.

    Layout: bytes 0, 0, 8 (unsigned bytes), d, then d big-endian uint32 sizes, then the values.
    """
    content = read_bytes(path)
    magic = bytes((0, 0, 8, dimensions))
    start = 4 + 4 * dimensions
    if content[:4] != magic:
        raise DataError(
            f"{path} starts with {content[:4].hex()}, expected {magic.hex()} (IDX, {dimensions}-d bytes). "
            "It is another kind of file; check that images and labels were not exchanged."
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    expected = start + math.prod(shape)
    if len(shape) != dimensions or len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, its header promises {expected}. Download it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_split(folder: Path, split: str) -> Examples:
    """Images [n, 1, h, w] and labels of the split "train" or "test"."""
    image_file, label_file = (require(folder, name) for name in FILES[split])
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    return checked(images[:, None], labels, NUM_CLASSES, f"{image_file} and {label_file}")


@dataclass(frozen=True)
class IdxReader:
    """Finds and reads one of the two data sets, which must not be mistaken for each other."""

    name: str

    def locate(self, root: Path) -> Path | None:
        """The folder of this data set at or under `root`."""
        folders = (root / sub for sub in FOLDERS[self.name])
        found = next((folder for folder in folders if _has_training_images(folder)), None)
        return found or (root if _has_training_images(root) and self._is_own(root) else None)

    def read(self, folder: Path) -> tuple[Examples, Examples]:
        """Training and test examples."""
        train, test = read_split(folder, "train"), read_split(folder, "test")
        for other, first in FIRST_LABELS.items():
            if other != self.name and _starts_with(train, first):
                raise DataError(
                    f"{folder} holds {other}, not {self.name}. Ask for {other} or correct the folder."
                )
        return train, test

    def _is_own(self, root: Path) -> bool:
        """Whether the files directly in `root` are this data set: by the folder's name, else by content."""
        own_names = {part for sub in FOLDERS[self.name] for part in sub.split("/")} - {"raw"}
        other_names = {part for subs in FOLDERS.values() for sub in subs for part in sub.split("/")} - {"raw"}
        named = {root.name, root.parent.name} if root.name == "raw" else {root.name}
        if named & other_names:
            return bool(named & own_names)
        return _starts_with(read_split(root, "train"), FIRST_LABELS[self.name])


def _has_training_images(folder: Path) -> bool:
    return plain_or_gzipped(folder, FILES["train"][0]) is not None


def _starts_with(examples: Examples, first: tuple[int, ...]) -> bool:
    return tuple(examples.labels[: len(first)].tolist()) == first

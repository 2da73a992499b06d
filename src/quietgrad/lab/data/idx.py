"""MNIST and Fashion-MNIST in the IDX format."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.files import plain_or_gzipped, read_bytes, require
from quietgrad.lab.data.normalisation import FASHION_CONSTANTS, MNIST_CONSTANTS
from quietgrad.lab.data.source import Reader, Source

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
# Each one is scaled with the other's constants: those owe nothing to the private records.
NORMALISATIONS = {"mnist": FASHION_CONSTANTS, "fashion-mnist": MNIST_CONSTANTS}


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
    if len(content) < start:
        raise DataError(f"{path} ends within its header. Download it again.")
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, its header promises {expected}. Download it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def read_split(folder: Path, split: str) -> Examples:
    """Images [n, 1, h, w] and labels of the split "train" or "test"."""
    image_file, label_file = (require(folder, name) for name in FILES[split])
    images, labels = read_idx(image_file, 3), read_idx(label_file, 1)
    return checked(images[:, None], labels, NUM_CLASSES, f"{image_file} and {label_file}")


def locate(name: str, root: Path) -> Path | None:
    """The folder of the data set at or under `root`."""
    folders = (root / sub for sub in FOLDERS[name])
    found = next((folder for folder in folders if _has_training_images(folder)), None)
    return found or (root if _has_training_images(root) and _is_own(name, root) else None)


def read(name: str, folder: Path) -> Source:
    """Both splits, unless the folder holds the other data set."""
    train, test = read_split(folder, "train"), read_split(folder, "test")
    for other, first in FIRST_LABELS.items():
        if other != name and _starts_with(train.labels, first):
            raise DataError(f"{folder} holds {other}, not {name}. Ask for {other} or correct the folder.")
    return Source(train=train, test=test, num_classes=NUM_CLASSES, normalisation=NORMALISATIONS[name])


def _is_own(name: str, root: Path) -> bool:
    """Whether the files directly in `root` are this data set: by the folder's name, else by content."""
    folder_name = root.parent.name if root.name == "raw" else root.name
    owner = next((owner for owner, names in FOLDERS.items() if folder_name in names), None)
    if owner is not None:
        return owner == name
    return _starts_with(read_idx(require(root, FILES["train"][1]), 1), FIRST_LABELS[name])


def _has_training_images(folder: Path) -> bool:
    return plain_or_gzipped(folder, FILES["train"][0]) is not None


def _starts_with(labels: np.ndarray, first: tuple[int, ...]) -> bool:
    return tuple(labels[: len(first)].tolist()) == first


MNIST = Reader(
    name="mnist",
    title="MNIST, 60,000 + 10,000 grey images of digits",
    locate=partial(locate, "mnist"),
    read=partial(read, "mnist"),
    how_to_get="put the four IDX files of MNIST, gzipped or not, into the data folder's MNIST/raw",
)
FASHION_MNIST = Reader(
    name="fashion-mnist",
    title="Fashion-MNIST, 60,000 + 10,000 grey images of clothes, 10 classes",
    locate=partial(locate, "fashion-mnist"),
    read=partial(read, "fashion-mnist"),
    how_to_get="apt install dataset-fashion-mnist, or put the four IDX files of "
    "https://github.com/zalandoresearch/fashion-mnist into the data folder's FashionMNIST/raw",
)

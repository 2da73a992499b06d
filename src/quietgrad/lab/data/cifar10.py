"""CIFAR-10: the python and the binary batches."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.files import read_bytes
from quietgrad.lab.data.normalisation import IMAGENET_CONSTANTS
from quietgrad.lab.data.source import Reader, Source, first_existing, require_file

NUM_CLASSES = 10
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
PYTHON_FOLDERS = (
    "cifar-10-batches-py",
    "CIFAR10/cifar-10-batches-py",
    "cifar10/cifar-10-batches-py",
    "cifar10",
)
BINARY_FOLDERS = (
    "cifar-10-batches-bin",
    "CIFAR10/cifar-10-batches-bin",
    "cifar10/cifar-10-batches-bin",
    "cifar10",
)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles plain values and numpy arrays; anything else could run code and is refused."""

    def find_class(self, module: str, name: str) -> Any:
        rebuild = np.zeros(0).__reduce__()[0]  # numpy's own array rebuilder, wherever this version keeps it
        admitted: dict[tuple[str, str], Any] = {
            ("numpy.core.multiarray", "_reconstruct"): rebuild,
            ("numpy._core.multiarray", "_reconstruct"): rebuild,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _encode_latin1,
        }
        if (module, name) not in admitted:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which is no array")
        return admitted[module, name]


def _encode_latin1(text: str, encoding: str) -> bytes:
    """How Python 3 stores bytes in old pickles; no other codec is needed or admitted."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it uses the codec {encoding}")
    return text.encode("latin1")


def _unpickle(path: Path) -> dict[str, Any]:
    """The dictionary of a python batch, with its keys as text."""
    try:
        batch = _ArraysOnly(io.BytesIO(read_bytes(require_file(path))), encoding="bytes").load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
    ) as error:
        raise DataError(f"{path} is not a CIFAR-10 python batch ({error}). Download it again.") from error
    if not isinstance(batch, dict):
        raise DataError(f"{path} holds a {type(batch).__name__}, not a CIFAR-10 batch. Download it again.")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in batch.items()}


def read_python_batch(path: Path) -> Examples:
    """Images [n, 3, 32, 32] and labels of one pickled batch."""
    batch = _unpickle(path)
    data, labels = batch.get("data"), batch.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (PIXELS,):
        raise DataError(f"{path} has no data of {PIXELS} bytes a row. It is not CIFAR-10; download it again.")
    if not isinstance(labels, list) or not all(isinstance(label, int) for label in labels):
        raise DataError(
            f"{path} has no list of labels (CIFAR-100 calls them fine_labels). Use CIFAR-10's batches."
        )
    return checked(data.reshape(-1, *SHAPE), np.array(labels, dtype=np.int64), NUM_CLASSES, path)


def read_binary_batch(path: Path) -> Examples:
    """Images and labels of one binary batch: rows of a label byte and 3072 pixel bytes."""
    content = np.frombuffer(read_bytes(require_file(path)), dtype=np.uint8)
    if len(content) == 0 or len(content) % (1 + PIXELS):
        raise DataError(f"{path} has {len(content)} bytes, no multiple of {1 + PIXELS}. Download it again.")
    rows = content.reshape(-1, 1 + PIXELS)
    return checked(rows[:, 1:].reshape(-1, *SHAPE), rows[:, 0], NUM_CLASSES, path)


def _read(folder: Path) -> Source:
    binary = (folder / "data_batch_1.bin").is_file()
    read: Callable[[Path], Examples] = read_binary_batch if binary else read_python_batch
    suffix = ".bin" if binary else ""
    batches = [read(folder / f"{name}{suffix}") for name in BATCHES]
    sizes = [len(batch) for batch in batches]
    if len(set(sizes)) > 1:  # a binary file cut between two records looks complete
        raise DataError(f"{folder}: the five batches have {sizes} images. Download the smaller ones again.")
    images, labels = (
        np.concatenate(arrays) for arrays in zip(*((b.inputs, b.labels) for b in batches), strict=True)
    )
    return Source(
        train=Examples(images, labels),
        test=read(folder / f"test_batch{suffix}"),
        num_classes=NUM_CLASSES,
        normalisation=IMAGENET_CONSTANTS,
    )


def _locate(root: Path) -> Path | None:
    python = first_existing(root, PYTHON_FOLDERS, "data_batch_1")
    return python or first_existing(root, BINARY_FOLDERS, "data_batch_1.bin")


CIFAR10 = Reader(
    name="cifar10",
    title="CIFAR-10, 60,000 colour images of 10 classes",
    locate=_locate,
    read=_read,
    how_to_get="unpack https://www.cs.toronto.edu/~kriz/cifar.html's python version in the data folder",
)

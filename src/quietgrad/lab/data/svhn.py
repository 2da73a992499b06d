"""Street View House Numbers, cropped digits, in MATLAB files."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples, checked
from quietgrad.lab.data.normalisation import IMAGENET_CONSTANTS
from quietgrad.lab.data.source import Reader, Source, first_existing, require_file

NUM_CLASSES = 10
FOLDERS = ("SVHN", "svhn")
TRAIN, EXTRA, TEST = "train_32x32.mat", "extra_32x32.mat", "test_32x32.mat"


def read_mat(path: Path) -> Examples:
    """Images [n, 3, 32, 32] and labels; the file stores [32, 32, 3, n] and writes the digit 0 as 10."""
    try:
        content = loadmat(require_file(path), variable_names=["X", "y"])
    except (
        MatReadError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        NotImplementedError,
        zlib.error,
    ) as error:
        raise DataError(f"{path} is not a readable MATLAB 5 file ({error}). Download it again.") from error
    images, labels = content.get("X"), content.get("y")
    if images is None or labels is None or images.dtype != np.uint8 or images.shape[:3] != (32, 32, 3):
        raise DataError(
            f"{path} lacks X of 32x32x3 byte images or y. Use the cropped digits (format 2) of SVHN."
        )
    digits = labels.reshape(-1).astype(np.int64)
    if len(digits) and not (digits.min() >= 1 and digits.max() <= 10):
        raise DataError(f"{path}: some labels are not among 1 to 10 (10 is digit 0). Download it again.")
    return checked(images.transpose(3, 2, 0, 1), digits % 10, NUM_CLASSES, path)


def _read(folder: Path, files: tuple[str, ...]) -> Source:
    parts = [read_mat(folder / file) for file in files]
    return Source(
        train=Examples(
            np.concatenate([part.inputs for part in parts]), np.concatenate([part.labels for part in parts])
        ),
        test=read_mat(folder / TEST),
        num_classes=NUM_CLASSES,
        normalisation=IMAGENET_CONSTANTS,
    )


SVHN = Reader(
    name="svhn",
    title="SVHN, 73,257 + 26,032 colour images of house digits",
    locate=lambda root: first_existing(root, FOLDERS, TRAIN),
    read=lambda folder: _read(folder, (TRAIN,)),
    how_to_get=f"put {TRAIN} and {TEST} (http://ufldl.stanford.edu/housenumbers) into the data folder's SVHN",
)
SVHN_EXTENDED = Reader(
    name="svhn-extended",
    title="SVHN with its 531,131 extra images",
    locate=lambda root: first_existing(root, FOLDERS, EXTRA),
    read=lambda folder: _read(folder, (TRAIN, EXTRA)),
    how_to_get=f"put {EXTRA} (http://ufldl.stanford.edu/housenumbers) beside {TRAIN}",
)

"""A data set as it lies on disk, before it is split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import Examples
from quietgrad.lab.data.normalisation import Normalisation, centred
from quietgrad.tables import Schema


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a reader returns.

    Args:
        train: the records to draw private (and, if asked, public and test) examples from.
        test: examples that came as a test set, None if there are none.
        public_inputs: inputs that came as public data, None if there are none.
        public_labels: their labels, None if they have none.
        num_classes: number of classes; 0 where a number is predicted.
        normalisation: fixed scaling of uint8 images, None for features and tokens.
        notes: what the report should say about the reading, such as a tokenizer.
        classes: their names, empty where they are numbers.
        schema: the columns of a table, in the order of its features; None for anything else.
        target: bounds of the number that is predicted; labels are then scaled to [−1, 1].
    """

    train: Examples
    test: Examples | None
    num_classes: int
    normalisation: Normalisation | None
    public_inputs: ndarray | None = None
    public_labels: ndarray | None = None
    notes: str = ""
    classes: tuple[str, ...] = ()
    schema: Schema | None = None
    target: tuple[float, float] | None = None

    def tensor(self, inputs: ndarray) -> Tensor:
        """Network inputs: scaled float32 images, float32 features or int64 tokens."""
        if self.normalisation is not None:
            return self.normalisation.apply(inputs)
        kind = torch.float32 if np.issubdtype(inputs.dtype, np.floating) else torch.int64
        return torch.tensor(inputs, dtype=kind)

    def scaling(self) -> str:
        """One line for the report."""
        return self.normalisation.describe() if self.normalisation else "none"


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How one named data set is found, read and got.

    Args:
        name: what users write.
        title: one line for a listing.
        locate: the data set's folder at or under a root, None if it is not there.
        read: the data set in such a folder.
        how_to_get: one line for who does not have it.
        read_words: the same with a tokenizer, for texts.
    """

    name: str
    title: str
    locate: Callable[[Path], Path | None]
    read: Callable[[Path], Source]
    how_to_get: str
    read_words: Callable[[Path, Any], Source] | None = None


def image_normalisation(inputs: ndarray) -> Normalisation | None:
    """The scaling of a user's own inputs: uint8 images to [-1, 1], anything else as it is."""
    return centred(inputs.shape[1]) if inputs.dtype == np.uint8 else None


def first_existing(root: Path, folders: tuple[str, ...], file: str) -> Path | None:
    """The first of the sub-folders (or the root itself) that holds `file`."""
    candidates = [*(root / folder for folder in folders), root]
    return next((folder for folder in candidates if (folder / file).is_file()), None)


def require_file(path: Path) -> Path:
    """The path, if it is a file."""
    if not path.is_file():
        raise DataError(f"{path} is missing. Download it into this folder.")
    return path

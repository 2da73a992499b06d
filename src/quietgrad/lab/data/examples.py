"""Examples as the readers give them: raw arrays and labels, checked once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64, Shaped
from numpy import ndarray

from quietgrad.lab.data.errors import DataError


@dataclass(frozen=True)
class Examples:
    """Inputs in their stored type (uint8 images, float32 features or int64 tokens) and their labels.

    Args:
        inputs: one row an example.
        labels: classes counted from 0, or numbers in [−1, 1], NaN where one is missing.
        columns: what else is known of each example, by name, such as whose it is.
    """

    inputs: Shaped[ndarray, "n ..."]
    labels: Shaped[ndarray, "n"]
    columns: Mapping[str, ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Int64[ndarray, "m"]) -> Examples:
        """The examples with these row numbers."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return Examples(self.inputs[rows], self.labels[rows], columns)


def checked(inputs: ndarray, labels: ndarray, num_classes: int, source: object) -> Examples:
    """Examples whose counts agree and whose labels are whole numbers in 0 ... num_classes - 1."""
    if labels.ndim != 1 or len(inputs) != len(labels):
        raise DataError(
            f"{source}: {len(inputs)} inputs, labels of shape {labels.shape}. Use files that belong together."
        )
    if not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"{source}: labels of type {labels.dtype}. Store them as whole numbers counted from 0."
        )
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise DataError(
            f"{source}: some labels are not among 0 to {num_classes - 1}. "
            "Renumber the labels from 0 or use undamaged files."
        )
    return Examples(np.ascontiguousarray(inputs), labels.astype(np.int64))


def digests(inputs: Shaped[ndarray, "n ..."]) -> list[bytes]:
    """A 128-bit hash of each row's content: equal rows, and in practice only those, have equal hashes."""
    return [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in inputs]

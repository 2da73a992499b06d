"""A user's own arrays: x, y and, if there are, public_x, public_y, test_x, test_y in one .npz file, and whose x is."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy import ndarray

from quietgrad.lab.data.errors import DataError
from quietgrad.lab.data.examples import checked
from quietgrad.lab.data.source import Source, image_normalisation

MOST_CLASSES = 100_000
"""Above this, labels are taken for identifiers."""

NAMES = ("x", "y", "public_x", "public_y", "test_x", "test_y")


def read_npz(path: Path, unit: str | None = None) -> Source:
    """The arrays as a source; the number of classes is one more than the largest label.

    Args:
        unit: the name of one more array, the user of each row of x.
    """
    arrays = _arrays(path, NAMES if unit is None else (*NAMES, unit))
    inputs = {
        name: _inputs(arrays[name], path, name) for name in ("x", "public_x", "test_x") if name in arrays
    }
    for name, array in inputs.items():
        if array.shape[1:] != inputs["x"].shape[1:] or array.dtype != inputs["x"].dtype:
            raise DataError(
                f"{path}: {name} has rows of {array.shape[1:]} {array.dtype}, "
                f"x of {inputs['x'].shape[1:]} {inputs['x'].dtype}. Store all inputs alike."
            )
    num_classes = _num_classes(arrays, path)
    labelled = {
        prefix: checked(
            inputs[f"{prefix}x"], arrays[f"{prefix}y"], num_classes, f"{path} ({prefix}x, {prefix}y)"
        )
        for prefix in ("", "test_", "public_")
        if f"{prefix}x" in arrays and f"{prefix}y" in arrays
    }
    return Source(
        train=replace(labelled[""], columns=_columns(arrays, unit, path)),
        test=labelled.get("test_"),
        num_classes=num_classes,
        normalisation=image_normalisation(inputs["x"]),
        public_inputs=inputs.get("public_x"),
        public_labels=labelled["public_"].labels if "public_" in labelled else None,
        notes="the number of classes was taken from the labels and is assumed to be public",
    )


def _columns(arrays: Mapping[str, ndarray], unit: str | None, path: Path) -> dict[str, ndarray]:
    if unit is None or unit not in arrays:
        return {}
    if arrays[unit].shape != arrays["y"].shape:
        raise DataError(
            f"{path}: {unit} has shape {arrays[unit].shape}, y {arrays['y'].shape}. Name the user of each row."
        )
    return {unit: arrays[unit]}


def _arrays(path: Path, names: Sequence[str]) -> Mapping[str, ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist. Check the path.") from error
    except MemoryError:
        raise DataError(
            f"{path} has an array whose header promises more than fits into memory. Write it anew with numpy.savez, or "
            "store fewer rows."
        ) from None
    except (
        OSError,
        ValueError,
        EOFError,
        AttributeError,
        TypeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(
            f"{path} is not a readable .npz of plain arrays ({error}). Write it with numpy.savez."
        ) from error
    unknown = [name for name in arrays if name not in names]
    if unknown:
        raise DataError(
            f"{path} has the unknown array {unknown[0]!r}. Known: {', '.join(names)}, and what data.unit names."
        )
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{path} has no array {name!r}. Store inputs as x and labels as y.")
    for name, partner in (("test_x", "test_y"), ("test_y", "test_x"), ("public_y", "public_x")):
        if name in arrays and partner not in arrays:
            raise DataError(f"{path} has {name} but no {partner}. Store both.")
    return arrays


def _inputs(array: ndarray, path: Path, name: str) -> ndarray:
    """uint8 images [n, c, h, w], float32 inputs [n, ...] or int64 tokens [n, t]; nothing else."""
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        images = array[:, None] if array.ndim == 3 else array
        if images.shape[1] not in (1, 3):
            raise DataError(
                f"{path}: {name} has shape {array.shape}. Store images as (n, 1 or 3, height, width)."
            )
        return images
    if np.issubdtype(array.dtype, np.floating) and array.ndim >= 2:
        if not np.isfinite(array).all():
            raise DataError(f"{path}: {name} has NaN or infinite values. Remove or replace them.")
        return array.astype(np.float32)
    if np.issubdtype(array.dtype, np.integer) and array.dtype != np.uint8 and array.ndim == 2:
        return array.astype(np.int64)
    raise DataError(
        f"{path}: {name} has shape {array.shape} and type {array.dtype}. "
        "Store uint8 images (n, c, h, w), floats (n, ...) or whole-number tokens (n, t)."
    )


def _num_classes(arrays: Mapping[str, ndarray], path: Path) -> int:
    labels = arrays["y"]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or len(labels) == 0:
        raise DataError(
            f"{path}: y has shape {labels.shape} and type {labels.dtype}. Store one whole number a row."
        )
    if labels.max() < 1:
        raise DataError(f"{path}: y has a single class. Number at least two classes from 0.")
    if labels.max() >= MOST_CLASSES:
        raise DataError(
            f"{path}: y numbers more than {MOST_CLASSES:,} classes, and a model has outputs for all of them. Number "
            "the classes from 0 without gaps."
        )
    return int(labels.max()) + 1

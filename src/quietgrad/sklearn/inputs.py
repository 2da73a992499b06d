"""What an estimator is given, as features in [−1, 1]: arrays with bounds, sparse matrices, tables with columns."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from quietgrad._linear_probe.rule import PrivacyWarning
from quietgrad.tables.schema import Schema


def read_schema(columns: Any) -> Schema | None:
    """Return what `columns=` states: a Schema, a mapping, or the path of a TOML file.

    Raises:
        ValueError: it is something else, or states no column that is used.
    """
    if columns is None:
        return None
    if isinstance(columns, str | Path):
        columns = Schema.from_toml(columns)
    if not isinstance(columns, Mapping):
        raise ValueError(
            f"Expected columns as a mapping from names to what is known of them, got {type(columns).__name__}. "
            'Write columns={"age": [0, 110], "ward": ["er", "icu"]}, or pass the path of a TOML file.'
        )
    schema = columns if isinstance(columns, Schema) else Schema(columns)
    if not schema.features:
        raise ValueError("columns= names no column that is used. State bounds or categories of at least one.")
    return schema


def scale_to_bounds(
    values: Float[Tensor, "n d"], lower: Float[Tensor, " d"], upper: Float[Tensor, " d"]
) -> Float[Tensor, "n d"]:
    """Map bounds to [−1, 1]; NaN where a value is missing or its column constant."""
    inside = torch.minimum(torch.maximum(values, lower), upper)
    width = (upper - lower).clamp_min(torch.finfo(values.dtype).tiny)
    return torch.where(upper > lower, 2 * (inside - lower) / width - 1, torch.nan)


def check_bounds(lower: Tensor, upper: Tensor, names: list[str]) -> None:
    """Refuse reversed bounds, with the name of their column."""
    for name, low, high in zip(names, lower.tolist(), upper.tolist(), strict=True):
        if low > high:
            raise ValueError(
                f"Column {name!r} has bounds ({low:g}, {high:g}), the first above the second. Swap them."
            )


def as_dense(X: Any) -> Any:
    """Return a sparse matrix as an array; anything else as it is.

    Features are dense after they were centred, so nothing is lost but memory.
    """
    return X.toarray() if hasattr(X, "toarray") and hasattr(X, "nnz") else X


def refuse_words(X: Any) -> None:
    """Refuse a DataFrame with columns of words, by their dtype alone, and name the first of them."""
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None or not hasattr(X, "columns"):
        return
    for name, dtype in zip(X.columns, list(dtypes), strict=True):
        kind = getattr(dtype, "kind", "O")
        if kind in "USM" or str(dtype) in ("category", "string", "str"):
            raise ValueError(
                f"Column {str(name)!r} holds {dtype} values, no numbers. State the columns: "
                f'columns={{"{name}": ["first", "second"], …}}, or drop it.'
            )


def say_if_objects(X: Any) -> None:
    """Warn, by the dtype alone, of columns that may hold words: rows with one contribute nothing."""
    if any(getattr(dtype, "kind", "") == "O" and str(dtype) == "object" for dtype in _dtypes(X)):
        warnings.warn(
            "X has columns of dtype object. A row with an entry that is no number contributes nothing: state "
            'columns={"age": [0, 110], "ward": ["er", "icu"]} of a DataFrame, or convert the columns to numbers.',
            PrivacyWarning,
            stacklevel=5,
        )


def _dtypes(X: Any) -> list[Any]:
    several = getattr(X, "dtypes", None)
    return [getattr(X, "dtype", None)] if several is None else list(several)


def single(values: ndarray) -> Float[Tensor, "n d"]:
    """In float32, without a word about what is beyond it."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.asarray(values, dtype=np.float32))

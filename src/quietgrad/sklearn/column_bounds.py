"""Bounds of columns: known, given by the type, or released and paid for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from quietgrad._program.statistics import Histograms, PooledHistogram

SHARE = 0.05
"""Part of the squared budget for bounds that nobody knows."""

_SIDE = [10.0**power * digit for power in range(-3, 7) for digit in (1.0, 2.0, 5.0)]
EDGES = (*(-value for value in reversed(_SIDE)), 0.0, *_SIDE)
"""A public grid from −5·10⁶ to 5·10⁶, three edges to a power of ten."""


def unknown_bounds(columns: int, bounds: str = "private") -> Histograms:
    """The statistic that pays for bounds: of each column, or of all of them together."""
    return (PooledHistogram if bounds == "pooled" else Histograms)(EDGES, columns)


def known_bounds(bounds: Any, values: ndarray, columns: int) -> tuple[Tensor, Tensor] | None:
    """Lower and upper bounds of all columns; None if they are to be paid for."""
    if isinstance(bounds, str):
        if bounds not in ("private", "pooled"):
            raise ValueError(
                f"Expected bounds=(lower, upper), bounds='private' or bounds='pooled', got {bounds!r}. Give what is "
                "known of the columns without looking at the records; the words spend a part of epsilon on it."
            )
        return (torch.zeros(columns), torch.full((columns,), 255.0)) if values.dtype == np.uint8 else None
    try:
        lower, upper = bounds
    except (TypeError, ValueError):
        raise ValueError(f"Expected bounds=(lower, upper), got {bounds!r}.") from None
    return _column(lower, columns, "lower"), _column(upper, columns, "upper")


def _column(bound: Any, columns: int, name: str) -> Float[Tensor, " d"]:
    values = np.asarray(bound, dtype=np.float32)
    if values.shape not in ((), (1,), (columns,)) or not np.isfinite(values).all():
        raise ValueError(
            f"Expected a finite {name} bound for all or for each of the {columns} columns, got shape {values.shape}."
        )
    return torch.from_numpy(np.broadcast_to(values, (columns,)).copy())

"""Weights of records: at most one each, so that none counts for more than the noise hides.

A weight multiplies what the clip has left of a record's error, so a record of weight w moves a sum by at most w·C.
Weights above `max_weight`, which the user states, count as `max_weight`; those below zero, or no number, count as zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor

from quietgrad.sklearn.records import as_array, read_numbers

LARGEST_RATIO = 10.0
"""How much heavier "balanced" makes a rare class: the noise does not shrink with the weights of the others."""


def record_weights(sample_weight: Any, records: int, max_weight: float) -> Float[Tensor, " n"] | None:
    """Return weights in [0, 1], None if there are none.

    Raises:
        ValueError: there are more or fewer weights than records, or max_weight is not positive.
    """
    if not (np.isfinite(max_weight) and max_weight > 0):
        raise ValueError(
            f"Expected max_weight > 0, got {max_weight}. It is the largest weight a record may have."
        )
    if sample_weight is None:
        return None
    if isinstance(sample_weight, Real):
        sample_weight = np.full(records, float(sample_weight))
    # One by one, because an odd weight may not stop the fit: it counts as zero.
    whole = as_array(sample_weight)
    shape = (len(sample_weight),) if whole is None else whole.shape
    if tuple(shape) != (records,):
        raise ValueError(
            f"sample_weight.shape == {tuple(shape)}, expected {(records,)}: one weight for each record."
        )
    values = read_numbers(sample_weight)
    inside = np.clip(np.nan_to_num(values, nan=0.0), 0.0, max_weight) / max_weight
    return torch.from_numpy(inside.astype(np.float32))


def class_weights(stated: Any, classes: ndarray) -> Float[Tensor, " k"] | None:
    """Return the stated weight of each class over the largest; None if none are stated, or "balanced" is.

    Raises:
        ValueError: a weight is missing, negative or no number.
    """
    if stated is None or isinstance(stated, str):
        if stated not in (None, "balanced"):
            raise ValueError(f"Expected class_weight as a dict, 'balanced' or None, got {stated!r}.")
        return None
    if not isinstance(stated, Mapping):
        raise ValueError(f"Expected class_weight as a dict, 'balanced' or None, got {type(stated).__name__}.")
    unknown = [one for one in stated if one not in classes.tolist()]
    if unknown:
        raise ValueError(
            f"class_weight has {unknown[0]!r}, which is none of the classes {classes.tolist()}. Correct the name."
        )
    found = torch.tensor([float(stated.get(one, 1.0)) for one in classes.tolist()])
    if not (bool((found >= 0).all()) and bool(found.isfinite().all()) and float(found.max()) > 0):
        raise ValueError(f"Expected class weights >= 0, finite and not all 0, got {dict(stated)}.")
    return found / found.max()


def balanced_weights(shares: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
    """Weights from released shares of the classes: one for the rarest, at least a tenth; post-processing."""
    floor = float(shares.max().clamp_min(1e-6)) / LARGEST_RATIO
    found = 1 / shares.clamp_min(floor)
    return found / found.max()


def joined_weights(
    records: Tensor | None, classes: Tensor | None, labels: Int64[Tensor, " n"]
) -> Float[Tensor, " n"] | None:
    """Multiply the weights of records and of their classes; a label that is ignored weighs nothing anyway."""
    if classes is None:
        return records
    own = classes[labels.clamp(0, len(classes) - 1)]
    return own if records is None else own * records

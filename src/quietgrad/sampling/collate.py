"""Empty draws for a DataLoader of the user's own: zero rows in whatever form its batches have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset, default_collate

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of records, at least one."""


def collate_possibly_empty(dataset: Dataset[Any], collate_fn: Collate = default_collate) -> Collate:
    """`collate_fn` for a DataLoader over a PoissonSampler: an empty draw becomes a batch of zero rows.

    The form comes from record 0 (dictionaries, BatchEncoding, tuples); its values are thrown away.

    Args:
        dataset: the loader's.
        collate_fn: for draws that are not empty: padding and the like.

    Returns:
        a function for `DataLoader(collate_fn=…)`.
    """

    def collate(records: list[Any]) -> Any:
        return collate_fn(records) if records else without_rows(collate_fn([dataset[0]]))

    return collate


def without_rows(batch: Any) -> Any:
    """A batch of one record with its row taken out; numbers and flags that are no rows stay."""
    if isinstance(batch, Tensor | np.ndarray):
        return batch[:0] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: without_rows(value) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(without_rows, batch))
    if isinstance(batch, list | tuple):
        return type(batch)() if _is_column(batch) else type(batch)(map(without_rows, batch))
    return batch


def _is_column(parts: list[Any] | tuple[Any, ...]) -> bool:
    """One text or number per record, where default_collate found nothing to stack."""
    return not any(isinstance(part, Tensor | np.ndarray | Mapping | list | tuple) for part in parts)

"""Empty draws for a DataLoader of the user's own: zero rows in whatever form its batches have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate

from quietgrad._errors import PrivacyError
from quietgrad._kernels.transfer import upload

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of records, at least one."""


@runtime_checkable
class MapStyle(Protocol):
    """A data set with numbered records: torch's, a list, Hugging Face's. It has a length too, which torch's class does
    not say."""

    def __getitem__(self, index: int, /) -> Any: ...


def collate_possibly_empty(dataset: MapStyle, collate_fn: Collate = default_collate) -> Collate:
    """Make a `collate_fn` that turns an empty draw into a batch of zero rows.

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
    """Take the row out of a batch of one record; numbers and flags that are no rows stay."""
    if isinstance(batch, Tensor | np.ndarray):
        return batch[:0] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return type(batch)({key: without_rows(value) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(without_rows, batch))
    if isinstance(batch, list | tuple):
        return type(batch)() if _is_column(batch) else type(batch)(map(without_rows, batch))
    return batch


def move(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to a device; the host does not wait for the copies."""
    if isinstance(batch, Tensor):
        return upload(batch, device)
    if isinstance(batch, Mapping):
        return type(batch)({key: move(value, device) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(part, device) for part in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(move(part, device) for part in batch)
    return batch.to(device) if hasattr(batch, "to") else batch


def _is_column(parts: list[Any] | tuple[Any, ...]) -> bool:
    """Whether it is one text or number per record, where default_collate found nothing to stack."""
    return not any(isinstance(part, Tensor | np.ndarray | Mapping | list | tuple) for part in parts)


def keeps_order(collate_fn: Collate, records: list[Any], batch: Any) -> bool:
    """Whether collating the records backwards gives the rows backwards; False where they do not tell.

    Rows of users who are not where they were drawn would be pooled, and clipped, with those of others.

    Args:
        batch: what `collate_fn` made of the records.

    Raises:
        ValueError: it sorts or shuffles them.
    """
    backwards = collate_fn(records[::-1])
    pairs = [
        (rows, other.flip(0))
        for rows, other in zip(pytree.tree_leaves(batch), pytree.tree_leaves(backwards), strict=True)
        if isinstance(rows, Tensor) and rows.dim() and len(rows) == len(records)
    ]
    if any(rows.shape != other.shape or not torch.equal(rows, other) for rows, other in pairs):
        raise PrivacyError(
            "The collate_fn changes the order of the records, so that rows would be taken for those of other users. "
            "Keep the order (no sorting by length), or pass batches that are sorted before they are drawn."
        )
    return any(not torch.equal(rows, rows.flip(0)) for rows, _ in pairs)

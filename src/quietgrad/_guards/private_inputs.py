"""Which tensors are private: those of the data set, and those that went through `backward`.

Two tensors are the same if they hold the same bytes: slices and views of one tensor do, copies do not.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import ConcatDataset, Dataset, Subset

from quietgrad._capture.call import tensors_of
from quietgrad._errors import PrivacyError
from quietgrad._sampling.collate import MapStyle

MOST_WAITING = 64
"""Inputs of forwards whose losses may still come; older ones are dropped."""

MOST_WORK = 10_000
"""Steps that numpy may take to find whether two strided views meet; beyond, they count as meeting."""

_open: weakref.WeakSet[PrivateInputs] = weakref.WeakSet()


class PrivateInputs:
    """Refuse private records in public losses, and one batch in two Privatizers.

    Slices and views of a private tensor are seen, copies are not. Nothing is decided by values.

    Checked by: tests/attacks/test_public_losses_of_private_data.py, tests/attacks/test_two_privatizers.py

    Args:
        dataset: the private records, if they are known.
    """

    def __init__(self, dataset: MapStyle | None) -> None:
        self._records = [] if dataset is None else list(tensors_in(dataset))
        self._waiting: list[tuple[Extent, int]] = []
        self._handed_out: list[Extent] = []
        self._consumed: list[Extent] = []
        self._is_open = False

    def open(self) -> None:
        """Be known to other Privatizers."""
        _open.add(self)
        self._is_open = True

    def close(self) -> None:
        """Let others have the batches."""
        _open.discard(self)
        self._is_open = False

    def hand_out(self, rows: Any) -> None:
        """Treat a micro-batch that is given to the loop as private, even before its losses come."""
        parts = tuple(rows) if isinstance(rows, list | tuple) else (rows,)
        self._handed_out = [extent(tensor) for tensor in _inputs(parts, {})]

    def consume(self, rows: int) -> None:
        """Take the inputs of so many rows that the model was given since the last losses.

        Raises:
            PrivacyError: another Privatizer that is still open took them.
        """
        inputs = [seen for seen, length in self._waiting if length == rows and seen.alive]
        self._waiting.clear()
        others = self._consumed_by_others()
        if any(mine.meets(theirs) for mine in inputs for theirs in others):
            raise PrivacyError(
                "This batch already went through another Privatizer. Two models trained on the same draws cost more "
                "than either ε says: draw batches for each from a PoissonSampler of its own."
            )
        self._consumed = [*self.consumed_extents(), *inputs]

    def _consumed_by_others(self) -> list[Extent]:
        if len(_open) == 1 and self._is_open:
            return []  # the one is this one; asking a weak set for its members is slow
        return [taken for other in _open if other is not self for taken in other.consumed_extents()]

    def consumed_extents(self) -> list[Extent]:
        """Return what went through `backward` and still exists."""
        return [seen for seen in self._consumed if seen.alive]

    def await_losses(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember the inputs of a private forward until its losses come."""
        self._waiting += [(extent(tensor), tensor.size(0)) for tensor in _inputs(args, kwargs)]
        del self._waiting[:-MOST_WAITING]

    def refuse_private(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Check the inputs of a forward of public losses.

        Raises:
            PrivacyError: they share memory with private records.
        """
        inputs = _inputs(args, kwargs)
        batches = [*self.consumed_extents(), *(seen for seen in self._handed_out if seen.alive)]
        if any(extent(tensor).meets(batch) for tensor in inputs for batch in batches):
            raise PrivacyError(_leaks("the private batch"))
        if any(share_memory(tensor, records) for tensor in inputs for records in self._records):
            raise PrivacyError(_leaks("records of the private data set"))


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    return [tensor for tensor in tensors_of(args, kwargs) if tensor.dim() and tensor.numel()]


def _leaks(what: str) -> str:
    return (
        f"public_losses fed {what} to the model, so that what is released would leak them. Compute public losses from "
        "data that are not among the private records."
    )


@dataclass(slots=True, eq=False)
class Extent:
    """From the first to the last byte of a tensor. The tensor is not kept alive.

    Args:
        storage: says whether these bytes still belong to it.
    """

    device: torch.device
    start: int
    stop: int
    storage: StorageWeakRef

    @property
    def alive(self) -> bool:
        return not self.storage.expired()

    def meets(self, other: Extent) -> bool:
        return self.device == other.device and self.start < other.stop and other.start < self.stop


def extent(tensor: Tensor) -> Extent:
    start = tensor.data_ptr()
    return Extent(tensor.device, start, start + _length(tensor), StorageWeakRef(tensor.untyped_storage()))


def _length(tensor: Tensor) -> int:
    """Bytes from the first to the last number."""
    if tensor.is_contiguous() or not tensor.numel():
        return tensor.nbytes
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors share bytes; exact for strided views on the CPU: x[::2] and x[1::2] share nothing."""
    if not extent(a).meets(extent(b)):
        return False
    if a.device.type != "cpu":
        return True
    try:
        return np.shares_memory(_bytes(a), _bytes(b), max_work=MOST_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _bytes(tensor: Tensor) -> NDArray[np.generic]:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    array: NDArray[np.generic] = tensor.detach().view(same_size[tensor.element_size()]).numpy()
    return array


def tensors_in(dataset: MapStyle) -> Iterator[Tensor]:
    """Yield the tensors and arrays that hold the records of a data set; of a Subset from its first to its last."""
    if isinstance(dataset, list | tuple):
        yield from _tensors(dataset)
    elif isinstance(dataset, Subset):
        whole: Any = dataset.dataset
        if isinstance(whole, list | tuple):
            yield from _tensors([whole[index] for index in dataset.indices])
            return
        first, last = min(dataset.indices, default=0), max(dataset.indices, default=-1)
        yield from (tensor[first : last + 1] for tensor in tensors_in(whole) if tensor.dim())
    elif isinstance(dataset, ConcatDataset):
        for part in dataset.datasets:
            yield from tensors_in(part)
    else:
        for value in getattr(dataset, "__dict__", {}).values():
            yield from _tensors(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and min(value.strides, default=0) >= 0:
        if value.flags.writeable:
            yield torch.from_numpy(value)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Dataset):
        yield from tensors_in(value)

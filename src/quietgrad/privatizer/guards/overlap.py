"""Whether two tensors hold the same bytes: slices and views of one tensor do, copies do not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import ConcatDataset, Dataset, Subset

MOST_WORK = 10_000
"""Steps that numpy may take to find whether two strided views meet; beyond, they count as meeting."""


@dataclass(frozen=True)
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
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    length = (last + 1) * tensor.element_size() if tensor.numel() else 0
    return Extent(tensor.device, start, start + length, StorageWeakRef(tensor.untyped_storage()))


def share_memory(a: Tensor, b: Tensor) -> bool:
    """Exact for strided views on the CPU: x[::2] and x[1::2] share nothing."""
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


def tensors_in(dataset: Dataset[Any] | Sequence[Any]) -> Iterator[Tensor]:
    """The tensors (and arrays) in which a data set keeps its records, of a Subset those between its first and last."""
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

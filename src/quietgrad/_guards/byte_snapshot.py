"""Whether tensors are what they were: the same objects, read in the same way, not written to, with the same bytes."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quietgrad._guards.model_tensors import ModelTensor

WORD = 8
COPIED = 1 << 16
"""Bytes up to which a copy is taken: it is as fast as sums, and no write can hide in it."""


class ByteSnapshot:
    """What some tensors are now, to be compared with what they are later.

    Args:
        tensors: are kept alive, so that no other object can have their identity.
        read_parameters: whether parameters are compared byte by byte too. All other tensors are.
    """

    def __init__(self, tensors: Iterable[ModelTensor], *, read_parameters: bool) -> None:
        self._tensors = {tensor.name: tensor.value for tensor in tensors}
        self._states = {tensor.name: _state(tensor) for tensor in tensors}
        self._checksums = {
            tensor.name: checksum(tensor.value)
            for tensor in tensors
            if read_parameters or not tensor.is_parameter
        }

    def find_change(self, tensors: Iterable[ModelTensor], *, read_bytes: bool) -> str | None:
        """Return the name of a tensor that is new, exchanged or written to; None if there is none.

        Args:
            read_bytes: also find writes that torch does not count, through `.data` or numpy.
        """
        for tensor in tensors:
            name = tensor.name
            if self._tensors.get(name) is not tensor.value or self._states[name] != _state(tensor):
                return name
            if read_bytes and name in self._checksums and self._checksums[name] != checksum(tensor.value):
                return name
        return None


def _state(tensor: ModelTensor) -> tuple[Any, ...]:
    """Return how the bytes are read, and how often torch saw them written to.

    `x.data = x.data.t()` counts as no write and leaves every byte as it was. Of a parameter the address is compared
    too: its bytes are not always read, and `p.data = other` is no write either.
    """
    value = tensor.value
    if not isinstance(value, Tensor):
        return value.dtype, value.shape, value.strides
    form = value.stride() if value.layout is torch.strided else value.layout
    written = None if value.is_inference() else value._version
    return value.dtype, value.shape, form, written, value.data_ptr() if tensor.is_parameter else None


def checksum(value: Tensor | NDArray[np.generic]) -> bytes | tuple[int, ...]:
    """Return a copy of short values; of others Σ of the 8-byte words of each half, and the CRC of the rest.

    One changed element always shows. There are two sums, since a queue that is rolled along keeps the sum of the whole.
    """
    if isinstance(value, Tensor):
        if value.device.type != "cpu":
            return _on_device(value)
        raw: NDArray[np.uint8] = _flat(value).view(torch.uint8).numpy()
    else:
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if len(raw) <= COPIED:
        return raw.tobytes()
    words = raw[: len(raw) // WORD * WORD].view(np.int64)
    half = len(words) // 2
    sums = [int(np.add.reduce(part)) for part in (words[:half], words[half:])]
    return *sums, zlib.crc32(raw[len(words) * WORD :].data)


def _on_device(value: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(value).view(same_size[min(value.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(value: Tensor) -> Tensor:
    return value.detach().contiguous().reshape(-1)

"""Whether tensors are what they were: the same objects, read in the same way, not written to, with the same bytes."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from quietgrad._guards.model_tensors import ModelTensor

WORD = 8
COPIED = 1 << 16  # bytes up to which a copy is taken: it is as fast as sums, and no write can hide in it


class ByteSnapshot:
    """What some tensors are now, to be compared with what they are later.

    Args:
        tensors: are kept alive, so that no other object can have their identity.
        read_parameters: whether parameters are compared byte by byte too. All other tensors are.
    """

    def __init__(self, tensors: list[ModelTensor], *, read_parameters: bool) -> None:
        self._states = {tensor.name: (tensor.value, _state(tensor)) for tensor in tensors}
        read = [tensor for tensor in tensors if read_parameters or not tensor.is_parameter]
        self._on_devices = DeviceChecksums([tensor for tensor in read if _is_on_device(tensor)])
        self._checksums = {
            tensor.name: checksum(tensor.value) for tensor in read if not _is_on_device(tensor)
        }

    def find_change(self, tensors: Iterable[ModelTensor], *, read_bytes: bool) -> str | None:
        """Return the name of a tensor that is new, exchanged or written to; else None."""
        for tensor in tensors:
            value, state = self._states.get(tensor.name, (None, None))
            if value is not tensor.value or state != _state(tensor):
                return tensor.name
            known = self._checksums.get(tensor.name) if read_bytes else None
            if known is not None and known != checksum(value):  # torch counts no writes through `.data`
                return tensor.name
        return self._on_devices.find_change() if read_bytes else None


class DeviceChecksums:
    """What tensors on devices hold, kept there: the host asks once for all tensors of a device, and waits once.

    As on the CPU, a copy is kept of short tensors, and two sums and the last bytes of others.
    """

    def __init__(self, tensors: list[ModelTensor]) -> None:
        self._tensors: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for tensor in tensors:
            assert isinstance(tensor.value, Tensor)
            self._tensors.setdefault(tensor.value.device, []).append((tensor.name, tensor.value))
        self._before = {device: _fused(found) for device, found in self._tensors.items()}

    def find_change(self) -> str | None:
        """Return the name of a tensor whose bytes are others than they were; else None."""
        for device, tensors in self._tensors.items():
            before, now = self._before[device], _fused(tensors)
            if bool((before != now).any()):
                place = int((before != now).nonzero()[0])
                for name, value in tensors:
                    place -= len(_kept(value))
                    if place < 0:
                        return name
        return None


def _fused(tensors: list[tuple[str, Tensor]]) -> Tensor:
    return torch.cat([_kept(value) for _, value in tensors])


def _kept(value: Tensor) -> Tensor:
    """Return, as bytes on its device, what is kept of a tensor."""
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    if len(raw) <= COPIED:
        return raw
    halves, rest = _halves(raw)
    return torch.cat([torch.stack([half.sum() for half in halves]).view(torch.uint8), rest])


def _is_on_device(tensor: ModelTensor) -> bool:
    return isinstance(tensor.value, Tensor) and tensor.value.device.type not in ("cpu", "meta")


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
    """Return a copy of short values; of others Σ of the 8-byte words of each half, and the last bytes.

    One changed element always shows. There are two sums, since a queue that is rolled along keeps the sum of the whole.
    """
    if _is_short_run(value):
        # One call instead of five operators: a step does this twice for each parameter of a small model.
        return ctypes.string_at(value.data_ptr(), value.nbytes)
    if not isinstance(value, Tensor):
        value = torch.from_numpy(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8)
    if len(raw) <= COPIED:
        return raw.cpu().numpy().tobytes()
    (first, second), rest = _halves(raw)
    return int(first.sum()), int(second.sum()), *rest.tolist()


def _is_short_run(value: Tensor | NDArray[np.generic]) -> TypeGuard[Tensor]:
    """Ask whether the value is one run of few bytes in the memory of the CPU."""
    return (
        isinstance(value, Tensor)
        and type(value) in (Tensor, nn.Parameter)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and value.is_contiguous()
        and 0 < value.nbytes <= COPIED
    )


def _halves(raw: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the 8-byte words of each half, and the bytes that are left."""
    raw = raw if raw.storage_offset() % WORD == 0 else raw.clone()  # torch reads words at multiples of 8 only
    count = len(raw) // WORD
    words = raw[: count * WORD].view(torch.int64)
    return (words[: count // 2], words[count // 2 :]), raw[count * WORD :]

"""Whether a tensor changed: by what torch counts, and by its bytes, which also `.data` and numpy write to."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Kept = Tensor | NDArray[np.generic]
WORD = 8
SHORT = 4096
"""Bytes up to which a CRC is as fast as two sums."""


@dataclass(frozen=True)
class Mark:
    """What is remembered of a tensor. The thing itself is held, so that no other can have its identity.

    Args:
        version: how often torch saw it written to; such writes are seen whatever values they wrote.
        checksum: of its bytes; None where they were not read.
    """

    thing: Kept
    version: int
    checksum: tuple[int, ...] | None

    def same(self, now: Kept, *, bytes_too: bool) -> bool:
        """Whether it is the same object, with the same version and, if they were read before, the same bytes."""
        if now is not self.thing or version(now) != self.version:
            return False
        return not bytes_too or self.checksum is None or checksum(now) == self.checksum


def mark(thing: Kept, *, read: bool) -> Mark:
    return Mark(thing, version(thing), checksum(thing) if read else None)


def version(thing: Kept) -> int:
    counted = isinstance(thing, Tensor) and not thing.is_inference()
    return thing._version if counted else 0  # type: ignore[union-attr]


def checksum(thing: Kept) -> tuple[int, ...]:
    """Σ of the 8-byte words of each half, modulo 2⁶⁴, and the CRC of the rest; of short ones the CRC.

    One changed element always shows. Two sums, since a queue that is rolled along keeps the sum of the whole.
    """
    if isinstance(thing, Tensor) and thing.device.type != "cpu":
        return _on_device(thing)
    raw = _bytes(thing)
    if len(raw) < SHORT:
        return (zlib.crc32(raw.data),)
    words = raw[: len(raw) // WORD * WORD].view(np.int64)
    half = len(words) // 2
    return int(words[:half].sum()), int(words[half:].sum()), zlib.crc32(raw[len(words) * WORD :].data)


def _bytes(thing: Kept) -> NDArray[np.uint8]:
    if isinstance(thing, Tensor):
        flat: NDArray[np.uint8] = _flat(thing).view(torch.uint8).numpy()
        return flat
    return np.ascontiguousarray(thing).reshape(-1).view(np.uint8)


def _on_device(thing: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(thing).view(same_size[min(thing.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(thing: Tensor) -> Tensor:
    return thing.detach().contiguous().reshape(-1)

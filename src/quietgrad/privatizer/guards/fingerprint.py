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
SHORT = 1024
"""Bytes up to which a CRC is as fast as two sums."""


@dataclass(frozen=True, eq=False)
class Bytes:
    """The bytes of something in memory: two halves of 8-byte words, and what is left. Short ones are all rest."""

    pointer: int
    size: int
    halves: tuple[NDArray[np.int64], ...]
    rest: memoryview

    def checksum(self) -> tuple[int, ...]:
        """Σ of the words of each half, modulo 2⁶⁴, and the CRC of the rest.

        One changed element always shows. Two sums, since a queue that is rolled along keeps the sum of the whole.
        """
        return *(int(np.add.reduce(half)) for half in self.halves), zlib.crc32(self.rest)

    def of(self, thing: Kept) -> bool:
        """Whether these are still the bytes of a contiguous tensor."""
        return isinstance(thing, Tensor) and thing.data_ptr() == self.pointer and thing.nbytes == self.size


@dataclass(frozen=True)
class Mark:
    """What is remembered of a tensor. The thing itself is held, so that no other can have its identity.

    Args:
        version: how often torch saw it written to; such writes are seen whatever values they wrote.
        checksum: of its bytes; None where they were not read.
        place: where they lie, if it can be read again without asking torch for it.
    """

    thing: Kept
    version: int
    checksum: tuple[int, ...] | None
    place: Bytes | None

    def same(self, now: Kept, *, bytes_too: bool) -> bool:
        """Whether it is the same object, with the same version and, if they were read before, the same bytes."""
        if now is not self.thing or version(now) != self.version:
            return False
        return not bytes_too or self.checksum is None or checksum(now, self.place) == self.checksum


def mark(thing: Kept, *, read: bool, before: Mark | None = None) -> Mark:
    """The mark of a thing.

    Args:
        before: an earlier one, which may know where the bytes lie.
    """
    place = before.place if before is not None and before.thing is thing else None
    if read and (place is None or not place.of(thing)):
        place = _in_place(thing)
    return Mark(thing, version(thing), checksum(thing, place) if read else None, place)


def version(thing: Kept) -> int:
    counted = isinstance(thing, Tensor) and not thing.is_inference()
    return thing._version if counted else 0  # type: ignore[union-attr]


def checksum(thing: Kept, place: Bytes | None = None) -> tuple[int, ...]:
    """Of all bytes, which lie at `place` if that is still theirs."""
    if place is not None and place.of(thing):
        return place.checksum()
    if isinstance(thing, Tensor) and thing.device.type != "cpu":
        return _on_device(thing)
    return _bytes(thing).checksum()


def _in_place(thing: Kept) -> Bytes | None:
    """Where the bytes of a tensor lie; None if reading them takes a copy."""
    there = isinstance(thing, Tensor) and thing.device.type == "cpu" and thing.is_contiguous()
    return _bytes(thing) if there else None


def _bytes(thing: Kept) -> Bytes:
    if isinstance(thing, Tensor):
        raw: NDArray[np.uint8] = _flat(thing).view(torch.uint8).numpy()
    else:
        raw = np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
    words = raw[: 0 if len(raw) < SHORT else len(raw) // WORD * WORD].view(np.int64)
    half = len(words) // 2
    halves = (words[:half], words[half:]) if half else ()
    return Bytes(raw.ctypes.data, len(raw), halves, raw[len(words) * WORD :].data)


def _on_device(thing: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(thing).view(same_size[min(thing.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(thing: Tensor) -> Tensor:
    return thing.detach().contiguous().reshape(-1)

"""Whether a tensor changed: told by what torch counts, and by its bytes, which also `.data` and numpy write to."""

from __future__ import annotations

import zlib
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quietgrad.privatizer.guards.holdings import Kept, Things, is_parameter

LOG_ONE_IN = 5
ONE_IN = 1 << LOG_ONE_IN
"""Of a large parameter one page in so many may be read, beginning with a random one: a write that covers so many is
always seen, a smaller one with this chance in each step. Buffers and attributes, where forwards keep things, are read
whole."""

WORD = 8
PAGE = 512
"""Words that are read or left out together."""
COPIED = 1 << 16
"""Bytes up to which a copy is taken: it is as fast as sums, and nothing that was written can hide in it."""

Checksum = bytes | tuple[int, ...]
"""The bytes themselves, or what stands for them."""

# ---- one thing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bytes:
    """The bytes of something in memory: all of them, and as 8-byte words with what is left."""

    pointer: int
    size: int
    whole: memoryview
    words: NDArray[np.int64]
    rest: memoryview

    @cached_property
    def _halves(self) -> tuple[NDArray[np.int64], ...]:
        half = len(self.words) // 2
        return self.words[:half], self.words[half:]

    @cached_property
    def _pages(self) -> int:
        return len(self.words) // PAGE

    def checksum(self, page: int | None) -> Checksum:
        """A copy of short ones; Σ of the words of each half, modulo 2⁶⁴, and the CRC of the rest of others.

        One changed element always shows. Two sums, since a queue that is rolled along keeps the sum of the whole.

        Args:
            page: of long ones, read one page in `ONE_IN` only, beginning with this one; None: all of them.
        """
        if self.size <= COPIED:
            return self.whole.tobytes()
        return *[int(np.add.reduce(part, axis=None)) for part in self._parts(page)], zlib.crc32(self.rest)

    def _parts(self, page: int | None) -> tuple[NDArray[np.int64], ...]:
        if page is None or self._pages < 2 * ONE_IN:
            return self._halves
        whole = self._pages * PAGE
        return self.words[:whole].reshape(-1, PAGE)[page::ONE_IN], self.words[whole:]

    def of(self, thing: Kept) -> bool:
        """Whether these are still the bytes of a contiguous tensor."""
        return isinstance(thing, Tensor) and thing.data_ptr() == self.pointer and thing.nbytes == self.size


@dataclass(slots=True, eq=False)
class Mark:
    """What is remembered of a tensor. The thing itself is held, so that no other can have its identity.

    Args:
        version: how often torch saw it written to; such writes are seen whatever values they wrote. None where torch
            does not count.
        checksum: of its bytes; None where they were not read.
        page: the first page that was read of a long one; None: all.
        place: where they lie, if it can be read again without asking torch for it.
    """

    thing: Kept
    version: int | None
    checksum: Checksum | None
    page: int | None
    place: Bytes | None

    def same(self, now: Kept, *, bytes_too: bool) -> bool:
        """Whether it is the same object, with the same version and, if they were read before, the same bytes."""
        if now is not self.thing or (self.version is not None and now._version != self.version):  # type: ignore[union-attr]
            return False
        return not bytes_too or self.checksum is None or checksum(now, self.place, self.page) == self.checksum


def mark(thing: Kept, *, read: bool = True, page: int | None = None) -> Mark:
    """The mark of a thing.

    Args:
        read: whether its bytes are read too, from which page on if not all.
    """
    place = in_place(thing) if read else None
    return Mark(thing, version(thing), checksum(thing, place, page) if read else None, page, place)


def version(thing: Kept) -> int | None:
    return thing._version if isinstance(thing, Tensor) and not thing.is_inference() else None


def checksum(thing: Kept, place: Bytes | None = None, page: int | None = None) -> Checksum:
    """Of the bytes, which lie at `place` if that is still theirs."""
    if place is not None and place.of(thing):
        return place.checksum(page)
    if isinstance(thing, Tensor) and thing.device.type != "cpu":
        return _on_device(thing)
    return _bytes(thing).checksum(page)


def in_place(thing: Kept) -> Bytes | None:
    """Where the bytes of a tensor lie; None if reading them takes a copy."""
    there = isinstance(thing, Tensor) and thing.device.type == "cpu" and thing.is_contiguous()
    return _bytes(thing) if there else None


def _bytes(thing: Kept) -> Bytes:
    if isinstance(thing, Tensor):
        raw: NDArray[np.uint8] = _flat(thing).view(torch.uint8).numpy()
    else:
        raw = np.ascontiguousarray(thing).reshape(-1).view(np.uint8)
    words = raw[: len(raw) // WORD * WORD].view(np.int64)
    return Bytes(raw.ctypes.data, len(raw), raw.data, words, raw[len(words) * WORD :].data)


def _on_device(thing: Tensor) -> tuple[int, ...]:
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    numbers = _flat(thing).view(same_size[min(thing.element_size(), WORD)])
    half = len(numbers) // 2
    return int(numbers[:half].sum()), int(numbers[half:].sum())


def _flat(thing: Tensor) -> Tensor:
    return thing.detach().contiguous().reshape(-1)


# ---- all things ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Shelved:
    """A tensor that torch counts writes to, and where its bytes lie."""

    name: str
    tensor: Tensor
    place: Bytes
    paged: bool
    """Whether it may be read in part."""


class Shelf:
    """The things of one list, and where the bytes of each lie: found once, and read over and over.

    Args:
        things: those of `Holdings.now`, which gives the same list as long as no object in it was exchanged.
    """

    def __init__(self, things: Things) -> None:
        self.things = things
        self.shelved: list[Shelved] = []
        self.odd: Things = []
        """Those of which torch counts no writes, or whose bytes do not lie in one piece."""
        for name, thing in things:
            place = in_place(thing)
            if isinstance(thing, Tensor) and place is not None and not thing.is_inference():
                self.shelved.append(Shelved(name, thing, place, is_parameter(name)))
            else:
                self.odd.append((name, thing))
        self.load = sum(thing.nbytes // (ONE_IN if is_parameter(name) else 1) for name, thing in things)
        """Bytes to read where parameters are read in part."""
        self._tensors = [one.tensor for one in self.shelved]
        self._pointers = [one.place.pointer for one in self.shelved]
        self._sizes = [one.place.size for one in self.shelved]

    def in_place(self) -> bool:
        """Whether everything lies where it did."""
        where, sizes = [t.data_ptr() for t in self._tensors], [t.nbytes for t in self._tensors]
        return where == self._pointers and sizes == self._sizes

    def versions(self) -> list[int]:
        return [t._version for t in self._tensors]


class Snapshot:
    """What is remembered of everything that a model holds.

    Args:
        shelf: whose things lie where it says.
        page: of long parameters, the first page that is read; None: all are.
        chosen: the names of what is read; None: everything.
    """

    def __init__(self, shelf: Shelf, page: int | None = None, chosen: Container[str] | None = None) -> None:
        self._shelf, self._page = shelf, page
        self._read = [one for one in shelf.shelved if chosen is None or one.name in chosen]
        self._versions, self._sums = shelf.versions(), self._checksums()
        self._odd = {
            name: mark(
                thing, read=chosen is None or name in chosen, page=page if is_parameter(name) else None
            )
            for name, thing in shelf.odd
        }
        self._replaced = False

    def _checksums(self) -> list[Checksum]:
        page = self._page
        return [one.place.checksum(page if one.paged else None) for one in self._read]

    def same(self, things: Things, *, bytes_too: bool) -> bool:
        """Whether all is as it was, asked of all at once. If not, or if marks were replaced, each mark has to tell."""
        shelf = self._shelf
        return (
            things is shelf.things
            and not self._replaced
            and shelf.versions() == self._versions
            and (not bytes_too or (shelf.in_place() and self._checksums() == self._sums))
            and all(self._odd[name].same(thing, bytes_too=bytes_too) for name, thing in shelf.odd)
        )

    @cached_property
    def marks(self) -> dict[str, Mark]:
        """Of each thing by its name."""
        sums = {one.name: found for one, found in zip(self._read, self._sums, strict=True)}
        return self._odd | {
            one.name: Mark(
                one.tensor, version, sums.get(one.name), self._page if one.paged else None, one.place
            )
            for one, version in zip(self._shelf.shelved, self._versions, strict=True)
        }

    def replace(self, name: str, thing: Kept) -> None:
        """This thing may be what it is now."""
        self.marks[name], self._replaced = mark(thing), True

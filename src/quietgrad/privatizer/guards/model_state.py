"""A model may change by releases only: what a forward writes into it is private data without noise.

Whether a tensor changed is told by what torch counts, and by its bytes, which also `.data` and numpy write to.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.call import Hook
from quietgrad.privatizer.guards.holdings import Holdings, Kept

READ_ALWAYS = 2**28
"""Bytes of a model that are read at every step; of a larger one a random part of about this size; all at the first."""

WORD = 8
SHORT = 1024
"""Bytes up to which a CRC is as fast as two sums."""

_anyone = random.SystemRandom()


class ModelStateGuard:
    """Remembers the model at the first forward of a step and refuses a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. A public forward may change buffers and attributes.

    Args:
        model: all of its parameters, buffers and attributes that hold tensors.
        in_public: whether the forward under way is one of public losses.
        batch_waits: whether a batch is under way; forwards before it see no private record.
    """

    def __init__(
        self, model: nn.Module, in_public: Callable[[], bool], batch_waits: Callable[[], bool]
    ) -> None:
        self._model, self._in_public, self._batch_waits = model, in_public, batch_waits
        self._holdings = Holdings(model)
        self._before: dict[str, Mark] | None = None
        self._last: dict[str, Mark] = {}
        self._kept_so_far: set[str] = set()
        self._first = True
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Watch for the first forward of a step, of the model or of any part of it that has parameters."""
        for module in self._model.modules():
            if module is self._model or module._parameters:
                self._handles.append(module.register_forward_pre_hook(Hook(lambda *_: self._begin())))
        self._handles.append(self._model.register_forward_pre_hook(Hook(self._begin_public)))
        self._handles.append(self._model.register_forward_hook(Hook(self._end_public)))

    def detach(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before, self._last = None, {}

    def check(self, *, read_bytes: bool) -> None:
        """Refuse what was kept since the first forward of this step.

        Args:
            read_bytes: also look for writes that torch does not count.

        Raises:
            ValueError: something changed, or is new.
        """
        if self._before is None:
            return
        for name, thing in self._holdings.now():
            if self._changed(name, thing, read_bytes=read_bytes):
                raise ValueError(_message(name))

    def _changed(self, name: str, thing: Kept, *, read_bytes: bool = True) -> bool:
        before = None if self._before is None else self._before.get(name)
        return before is None or not before.same(thing, bytes_too=read_bytes)

    def released(self) -> None:
        """The step is over."""
        self._before = None
        self._first = False

    # ---- the first forward of a step ------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._before is not None or not torch.is_grad_enabled() or self._in_public():
            return
        if self._batch_waits():
            self._before = self._last = self._marks(self._holdings.now())

    def _marks(self, things: list[tuple[str, Kept]]) -> dict[str, Mark]:
        total = sum(thing.nbytes for _, thing in things)
        share = 1.0 if self._first else min(1.0, READ_ALWAYS / max(total, 1))
        return {
            name: mark(thing, read=share == 1.0 or _anyone.random() < share, before=self._last.get(name))
            for name, thing in things
        }

    # ---- public forwards ------------------------------------------------------------------------------------

    def _begin_public(self, *_: Any) -> None:
        if self._before is not None and self._in_public():
            self._kept_so_far = {name for name, thing in self._not_trained() if self._changed(name, thing)}

    def _end_public(self, *_: Any) -> None:
        """Whatever no private forward had changed before it may be what the public one made of it."""
        if self._before is not None and self._in_public():
            for name, thing in self._not_trained():
                if name not in self._kept_so_far:
                    self._before[name] = mark(thing, read=True)

    def _not_trained(self) -> Iterator[tuple[str, Kept]]:
        return ((name, thing) for name, thing in self._holdings.now() if not name.startswith("parameter"))


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )


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

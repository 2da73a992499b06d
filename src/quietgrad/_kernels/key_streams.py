"""AES-256's key stream by the processor's own instructions; the reference is `_noise.aes`."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import array_address, function, load_library

BLOCK = 16
"""Bytes of a block of AES."""


class KeyPlace(NamedTuple):
    """A place in the key stream of AES-256.

    Args:
        position: bytes of the stream that were used already.
    """

    key: bytes
    number: int
    position: int


@runtime_checkable
class KeyStream(Protocol):
    """A stream of random bits that a kernel can go on with: `place` says from where, `skip` how far it went."""

    def place(self) -> KeyPlace: ...

    def skip(self, size: int) -> None: ...

    def fill(self, out: NDArray[Any]) -> None: ...


def aes_instructions() -> int:
    """Return the kind of instructions for AES at this level, 0 where there are none."""
    return _aes(load_library(), level_number())


@functools.cache
def _aes(library: ctypes.CDLL, number: int) -> int:
    return int(library.qg_aes(number))


def key_stream(place: KeyPlace, out: NDArray[np.uint8]) -> None:
    """Overwrite `out` with the bytes from this place on; the processor makes whole blocks of them."""
    kind = aes_instructions()
    assert kind, "bytes left as they were would be no noise at all"
    # AES makes blocks of 16 bytes. A position inside a block means that its first bytes were used by somebody else;
    # they are made again and cut off, so that no bit serves twice.
    first, inside = divmod(place.position, BLOCK)
    count = -(-(inside + len(out)) // BLOCK)
    whole = inside == 0 and len(out) == count * BLOCK
    made = out if whole else np.empty(count * BLOCK, np.uint8)
    function("qg_key_stream")(place.key, place.number, first, count, array_address(made), kind)
    if not whole:
        out[:] = made[inside : inside + len(out)]

"""The C library, where it was built: which of its versions this processor runs, and the memory that it works in.

`QUIETGRAD_KERNELS=off` takes the torch path everywhere; `portable`, `avx2` or `avx512` that version of each. torch
is imported first: with its OpenMP already there, one pool of threads serves both.

Its kernels write into memory that is used again: fresh pages would cost more than what is computed in them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, no_type_check

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

VARIABLE = "QUIETGRAD_KERNELS"
LEVELS = ("portable", "avx2", "avx512")
OFF = "off"
KERNELS = (
    "qg_add_steps",
    "qg_aes",
    "qg_best_level",
    "qg_boxes",
    "qg_conv_grads",
    "qg_gram_sums",
    "qg_key_stream",
    "qg_norm_rows",
    "qg_packed_room",
    "qg_row_squares",
    "qg_row_sums",
    "qg_sums_of_products",
    "qg_tents",
)
"""What is called in the library. A kernel that promises something new gets another name, which an older build lacks."""

_NUMBERS = {name: number for number, name in enumerate(LEVELS)}
_forced: list[str] = []


@functools.cache
def native() -> ctypes.CDLL | None:
    """The library, or None where it was not built, or not from these sources: an editable install keeps an old one."""
    found = importlib.util.find_spec("quietgrad._kernels._native")
    if found is None or found.origin is None:
        return None
    try:
        library = ctypes.CDLL(found.origin)
    except OSError:
        return None  # built for another machine
    return library if all(hasattr(library, name) for name in KERNELS) else None


def levels() -> tuple[str, ...]:
    """Those that this processor has, the fastest last; none without the library."""
    library = native()
    return () if library is None else LEVELS[: _best_level(library) + 1]


@functools.cache
def _best_level(library: ctypes.CDLL) -> int:
    """A processor stays what it is."""
    return int(library.qg_best_level())


def level() -> str:
    """The one in use, or "off"."""
    return _forced[-1] if _forced else _usual()


@functools.cache
def _usual() -> str:
    """What the environment says, else the fastest: asked at every call of a kernel."""
    return _from_environment() or (levels()[-1] if levels() else OFF)


def _from_environment() -> str | None:
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        return None
    known = (OFF, *levels())
    if chosen not in known:
        raise ValueError(
            f"Expected {VARIABLE} to be one of {', '.join(known)} on this machine, got {chosen!r}."
        )
    return chosen


@contextlib.contextmanager
def at(chosen: str) -> Iterator[None]:
    """Another level for a while."""
    assert chosen in (OFF, *levels()), chosen
    _forced.append(chosen)
    try:
        yield
    finally:
        _forced.pop()


def in_use() -> ctypes.CDLL | None:
    """The library, or None where the torch path is to be taken."""
    return None if level() == OFF else native()


def level_number() -> int:
    """As the kernels count them."""
    return _NUMBERS[level()]


def described() -> str:
    """For people."""
    if level() == OFF:
        return "torch" if native() is None else f"torch ({VARIABLE}=off)"
    return f"C, {level()}, {torch.get_num_threads()} threads"


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where a tensor's numbers begin."""
    return ctypes.c_void_p(tensor.data_ptr())


# ---- memory that is written over and over ------------------------------------------------------------------

LINE = 64
"""Bytes of a cache line."""


class Scratch(threading.local):
    """Arrays by name, each thread's own."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, count: int, dtype: DTypeLike) -> NDArray[Any]:
        """`count` numbers of the array of this name; they mean nothing yet, and hold until it is asked for again."""
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = _aligned(count, np.dtype(dtype))
        return kept[:count]


class Recycled(threading.local):
    """Tensors whose memory is given out again once no tensor lies in it: a step's sums lie where the last one's lay.

    A tensor made of an array holds that array, and so do all views of it: an array that the list alone holds is free.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.uint8]] = []

    def __call__(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor on the CPU, whose numbers mean nothing yet."""
        size = math.prod(shape) * dtype.itemsize
        place = next((k for k in self._free() if len(self._arrays[k]) == size), None)
        if place is None:
            # What else is free is of a model that is gone: one that is trained asks for the same in every step.
            free = set(self._free())
            self._arrays = [self._arrays[k] for k in range(len(self._arrays)) if k not in free]
            self._arrays.append(_aligned(size, np.dtype(np.uint8)))
            place = -1
        return torch.from_numpy(self._arrays[place]).view(dtype).view(*shape)

    def _free(self) -> Iterator[int]:
        return (k for k in range(len(self._arrays)) if _holders(self._arrays, k) == ALONE)


@no_type_check  # what checks annotations holds what it looks at
def _holders(arrays: list[NDArray[np.uint8]], place: int) -> int:
    return sys.getrefcount(arrays[place])


ALONE = _holders([np.empty(0, np.uint8)], 0)
"""What Python counts of an array that one list holds."""

RECYCLED = Recycled()
"""For sums that are as large as a model."""


LARGE = 33_000_000
"""Bytes, a little below the most that glibc learns from."""
KEPT, TRIM_THRESHOLD = 256 << 20, -1
"""Bytes that malloc may keep, and what glibc calls that."""


@functools.cache
def keep_freed_memory() -> None:
    """Once in a process, let malloc keep what a step frees for the next one, up to 256 MB at the end of its heap.

    A private step frees all its factors before its release; glibc would give their memory back to the system and ask
    for the same pages again in every step. It serves blocks from its heap up to the size of the largest that it has
    seen go, which is why one goes here; it is never written to and takes no memory. Another malloc is left alone.
    """
    np.empty(LARGE, np.uint8)
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(TRIM_THRESHOLD, KEPT)


def _aligned(count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """numpy begins arrays anywhere; products that are written across cache lines take a third longer."""
    size = count * dtype.itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size].view(dtype)

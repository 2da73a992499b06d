"""The C library, where it was built: which of its versions this processor runs, and with how many threads.

`QUIETGRAD_KERNELS=off` takes the torch path everywhere; `portable`, `avx2` or `avx512` that version of each. torch
is imported first: with its OpenMP already there, one pool of threads serves both.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator

import torch
from torch import Tensor

VARIABLE = "QUIETGRAD_KERNELS"
LEVELS = ("portable", "avx2", "avx512")
OFF = "off"
KERNELS = (
    "qg_add_steps",
    "qg_aes",
    "qg_best_level",
    "qg_boxes",
    "qg_conv_rows",
    "qg_gram_sums",
    "qg_key_stream",
    "qg_packed_size",
    "qg_product_sums",
    "qg_tents",
)
"""What is called in the library. A kernel that promises something new gets another name, which an older build lacks."""

_forced: list[str] = []


@functools.cache
def native() -> ctypes.CDLL | None:
    """The library, or None where it was not built, or not from these sources: an editable install keeps an old one."""
    found = importlib.util.find_spec("quietgrad.kernels._native")
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
    return () if library is None else LEVELS[: library.qg_best_level() + 1]


def level() -> str:
    """The one in use, or "off"."""
    chosen = _forced[-1] if _forced else _from_environment()
    return chosen or (levels()[-1] if levels() else OFF)


@functools.cache
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
    return LEVELS.index(level())


def described() -> str:
    """For people."""
    if level() == OFF:
        return "torch" if native() is None else f"torch ({VARIABLE}=off)"
    return f"C, {level()}, {torch.get_num_threads()} threads"


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where a tensor's numbers begin."""
    return ctypes.c_void_p(tensor.data_ptr())

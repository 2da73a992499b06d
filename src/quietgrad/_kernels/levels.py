"""Which version of the kernels is used: `QUIETGRAD_KERNELS`, or the fastest that this processor runs.

`QUIETGRAD_KERNELS=off` takes the torch reference everywhere; `portable`, `avx2` or `avx512` that version of the C
kernels. A choice that this machine cannot meet is refused by name; without one, what is missing is done without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Iterator

import torch

from quietgrad._kernels.library import best_level, native

VARIABLE = "QUIETGRAD_KERNELS"
LEVELS = ("portable", "avx2", "avx512")
OFF = "off"
TRITON_DEVICES = ("cuda",)
"""Types of devices with Triton kernels: NVIDIA's and AMD's both go by "cuda" in torch."""

_NUMBERS = {name: number for number, name in enumerate(LEVELS)}
# A stack, so that a block with another level may be inside one; tests take all levels in turn.
_chosen: list[str] = []


def levels() -> tuple[str, ...]:
    """List the versions that this processor runs, the fastest last; none without the C library."""
    library = native()
    return () if library is None else LEVELS[: best_level(library) + 1]


def level() -> str:
    """Return the version of the C kernels in use, or "off" where they are not."""
    return _chosen[-1] if _chosen else _usual()


def kernels_are_off() -> bool:
    """Tell whether somebody asked for the torch reference; a missing C library does not ask for it."""
    return (_chosen[-1] if _chosen else _from_environment()) == OFF


def level_number() -> int:
    """Return the version in use as the C code counts them."""
    return _NUMBERS[level()]


@functools.cache
def _usual() -> str:
    """Read once: every call of a kernel asks for it."""
    return _from_environment() or (levels()[-1] if levels() else OFF)


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


def read_environment_again() -> None:
    """Forget what the environment said and which library was found."""
    for cached in (native, _usual, _from_environment):
        cached.cache_clear()


@contextlib.contextmanager
def use_level(chosen: str) -> Iterator[None]:
    """Use another version inside a block."""
    assert chosen in (OFF, *levels()), chosen
    _chosen.append(chosen)
    try:
        yield
    finally:
        _chosen.pop()


def describe(device: str = "cpu") -> str:
    """Name the kernels in use on a type of device, for `explain()`."""
    if device != "cpu":
        if kernels_are_off():
            return f"torch ({VARIABLE}=off)"
        if device not in TRITON_DEVICES:
            return f"torch: there are no kernels for {device}"
        return "Triton" if triton_is_installed() else "torch: the package triton is not installed"
    if level() == OFF:
        return "torch" if native() is None else f"torch ({VARIABLE}=off)"
    return f"C, {level()}, {torch.get_num_threads()} threads"


@functools.cache
def triton_is_installed() -> bool:
    """Tell whether the package triton can be imported."""
    return importlib.util.find_spec("triton") is not None

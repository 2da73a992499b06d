"""The C library, where it was built. torch is imported first: one pool of OpenMP threads then works for both."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

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
"""Functions that are called. A kernel whose contract changes gets another name, which an older build lacks."""


@functools.cache
def native() -> ctypes.CDLL | None:
    """Load the library; None where it was not built, or from older sources, as an editable install may keep one."""
    found = importlib.util.find_spec("quietgrad._kernels._native")
    if found is None or found.origin is None:
        return None
    try:
        # Called through ctypes and not as an extension module: one build serves all versions of Python, and torch's
        # C++ headers are not needed to make it.
        library = ctypes.CDLL(found.origin)
    except OSError:
        return None  # built for another machine
    # Calling a kernel of other sources would read other arguments than were passed: better none than that.
    return library if all(hasattr(library, name) for name in KERNELS) else None


def load_library() -> ctypes.CDLL:
    """Return the library for a kernel that is only reached where there is one."""
    library = native()
    assert library is not None
    return library


@functools.cache
def best_level(library: ctypes.CDLL) -> int:
    """Ask for the highest version that this processor runs, once."""
    return int(library.qg_best_level())


PLACE, WHOLE, UNSIGNED, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "qg_add_steps": (*[PLACE] * 5, WHOLE, PLACE, ctypes.c_double, ctypes.c_double, INT, INT),
    "qg_key_stream": (PLACE, UNSIGNED, UNSIGNED, WHOLE, PLACE, INT),
    "qg_tents": (PLACE, PLACE, UNSIGNED, UNSIGNED, INT, PLACE, PLACE, WHOLE, WHOLE, PLACE, PLACE, INT, INT),
    "qg_boxes": (*[PLACE] * 4, WHOLE, PLACE, PLACE, INT),
    "qg_row_squares": (PLACE, WHOLE, WHOLE, WHOLE, PLACE, INT, INT),
    "qg_row_sums": (PLACE, WHOLE, PLACE, WHOLE, WHOLE, PLACE, INT, INT),
    "qg_block_norms": (PLACE, WHOLE, WHOLE, PLACE, INT),
    "qg_block_sums": (PLACE, WHOLE, WHOLE, PLACE, PLACE, INT),
    "qg_table_pairs": (*[PLACE] * 3, WHOLE, WHOLE, *[PLACE] * 4, INT),
    "qg_table_sums": (*[PLACE] * 4, WHOLE, WHOLE, PLACE, INT),
    "qg_row_times": (PLACE, WHOLE, WHOLE, WHOLE, PLACE, WHOLE, PLACE, INT, INT),
    "qg_row_lifts": (PLACE, WHOLE, WHOLE, WHOLE, PLACE, PLACE, WHOLE, ctypes.c_float, PLACE, INT, INT),
}
"""Declared to ctypes once, for the functions that are called most: a call then converts its numbers by itself."""


COUNTING = {"qg_tents", "qg_table_pairs"}
"""Those that return a number."""


def function(name: str) -> Callable[..., Any]:
    """Return a function of the library whose arguments are declared."""
    return _declare(load_library(), name)


@functools.cache
def _declare(library: ctypes.CDLL, name: str) -> Callable[..., Any]:
    found = getattr(library, name)
    found.argtypes = ARGUMENTS[name]
    found.restype = ctypes.c_int64 if name in COUNTING else None
    return found  # type: ignore[no-any-return]


def has_function(name: str) -> bool:
    """Tell whether the library has a kernel that an older build may lack."""
    return hasattr(native(), name)


def array_address(array: NDArray[Any]) -> int | None:
    """Return where the numbers of a writable array begin; numpy's own attribute takes three times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size else None  # type: ignore[arg-type]


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return where a tensor's numbers begin."""
    return ctypes.c_void_p(tensor.data_ptr())


def is_float32(*tensors: Tensor) -> bool:
    """Tell whether these are float32 tensors on the CPU with numbers in them: what most C kernels take."""
    return all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 for x in tensors)

"""The C library, where it was built. torch is imported first: one pool of OpenMP threads then works for both."""

from __future__ import annotations

import ctypes
import functools
import importlib.util

import torch
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
        library = ctypes.CDLL(found.origin)
    except OSError:
        return None  # built for another machine
    return library if all(hasattr(library, name) for name in KERNELS) else None


def loaded() -> ctypes.CDLL:
    """Return the library for a kernel that is only reached where there is one."""
    library = native()
    assert library is not None
    return library


@functools.cache
def best_level(library: ctypes.CDLL) -> int:
    """Ask for the highest version that this processor runs, once."""
    return int(library.qg_best_level())


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return where a tensor's numbers begin."""
    return ctypes.c_void_p(tensor.data_ptr())


def is_float32(*tensors: Tensor) -> bool:
    """Tell whether these are float32 tensors on the CPU with numbers in them: what most C kernels take."""
    return all(x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 for x in tensors)

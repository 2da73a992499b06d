"""Trials of the rounded Gaussian in C: the reference is `quietgrad.noise.rounded_gaussian`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from quietgrad.kernels.library import level_number

BOX = np.dtype([("start", np.int32), ("left", np.int16), ("right", np.int16), ("level", np.float32)])
"""`struct box` of trials.c: one line of the cache a point, not four."""

UNSETTLED = 2
"""What `boxes` says of a point that exact arithmetic must settle; 1 is below the curve, 0 above it."""


class PieceTables(ctypes.Structure):
    """`struct pieces` of trials.c."""

    _fields_ = (
        ("centre", ctypes.c_void_p),
        ("box", ctypes.c_void_p),
        ("tents", ctypes.c_int64),
        ("boxes", ctypes.c_int64),
        ("strips", ctypes.c_int64),
        ("log_std", ctypes.c_int64),
        ("log_apart", ctypes.c_int64),
        ("height", ctypes.c_double),
        ("doubt", ctypes.c_double),
    )


@dataclass(frozen=True, kw_only=True)
class KeyPlace:
    """A place in the key stream of AES-256, which the kernel goes on from by itself.

    Args:
        position: bytes of the stream that were used already.
    """

    key: bytes
    number: int
    position: int


def makes_key_streams(library: ctypes.CDLL) -> int:
    """The kind of instructions for AES, 0 where there are none and the caller brings the bytes."""
    return int(library.qg_aes(level_number()))


def tents(
    library: ctypes.CDLL,
    bits: KeyPlace | NDArray[np.uint8],
    pieces: PieceTables,
    out: NDArray[np.int32],
    at_once: int,
    places: NDArray[np.int32],
    slots: NDArray[np.int16],
) -> int:
    """A point of a tent for each place of `out`; returns how many want a box instead, which `places` and `slots` name.

    Args:
        bits: eight bytes a place, or where the kernel finds them.
    """
    place = bits if isinstance(bits, KeyPlace) else KeyPlace(key=bytes(32), number=0, position=0)
    raw = None if isinstance(bits, KeyPlace) else ctypes.c_void_p(bits.ctypes.data)
    library.qg_tents.restype = ctypes.c_int64
    found: int = library.qg_tents(
        raw,
        place.key,
        ctypes.c_uint64(place.number),
        ctypes.c_uint64(place.position),
        makes_key_streams(library),
        ctypes.byref(pieces),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_int64(len(out)),
        ctypes.c_int64(at_once),
        ctypes.c_void_p(places.ctypes.data),
        ctypes.c_void_p(slots.ctypes.data),
        level_number(),
        torch.get_num_threads(),
    )
    if found < 0:
        raise MemoryError("No memory for a draw of noise.")
    return found


def boxes(
    library: ctypes.CDLL,
    words: NDArray[np.uint64],
    pieces: PieceTables,
    out: NDArray[np.int32],
    places: NDArray[np.int32],
    slots: NDArray[np.int16],
) -> NDArray[np.uint8]:
    """A point of a box at each of the places of `out`; returns what became of it.

    Args:
        words: the first words of all places, then the second ones.
    """
    verdicts = np.empty(len(places), np.uint8)
    library.qg_boxes(
        ctypes.byref(pieces),
        ctypes.c_void_p(places.ctypes.data),
        ctypes.c_void_p(slots.ctypes.data),
        ctypes.c_void_p(words.ctypes.data),
        ctypes.c_int64(len(places)),
        ctypes.c_void_p(out.ctypes.data),
        ctypes.c_void_p(verdicts.ctypes.data),
        torch.get_num_threads(),
    )
    return verdicts

"""Noise in whole numbers in C: trials of the rounded Gaussian, and one pass that rounds a sum, adds them and scales.

The references are `noise.sources` and `noise.gaussian`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor

from quietgrad._kernels.library import level_number

PLACE, WHOLE, UNSIGNED, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "qg_add_steps": (*[PLACE] * 5, WHOLE, PLACE, ctypes.c_double, ctypes.c_double, INT, INT),
    "qg_key_stream": (PLACE, UNSIGNED, UNSIGNED, WHOLE, PLACE, INT),
    "qg_tents": (PLACE, PLACE, UNSIGNED, UNSIGNED, INT, PLACE, PLACE, WHOLE, WHOLE, PLACE, PLACE, INT, INT),
    "qg_boxes": (*[PLACE] * 4, WHOLE, PLACE, PLACE, INT),
}
"""Told to ctypes once, so that no call has to say of each number what it is."""


@functools.cache
def _function(library: ctypes.CDLL, name: str) -> Callable[..., Any]:
    function = getattr(library, name)
    function.argtypes = ARGUMENTS[name]
    function.restype = ctypes.c_int64 if name == "qg_tents" else None
    return function  # type: ignore[no-any-return]


def _address(array: NDArray[Any]) -> int | None:
    """Where the numbers of a writable array begin; numpy's own way to say so takes three times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size else None  # type: ignore[arg-type]


INPUTS = {torch.float32: 0, torch.float64: 1}
OUTPUTS = {torch.float32: 0, torch.float64: 1, torch.int64: 2}


def served(value: Tensor, target: Tensor, scaled: bool) -> bool:
    """Whether the kernel takes a piece: on the CPU, in precisions it knows, whole numbers where nothing is scaled."""
    return (
        value.device.type == "cpu"
        and value.dtype in INPUTS
        and target.dtype in OUTPUTS
        and (target.dtype == torch.int64) != scaled
        and value.is_contiguous()
    )


def add_steps(
    library: ctypes.CDLL,
    pieces: Sequence[tuple[Tensor, Tensor]],
    drawn: Int32[Tensor, " count"] | None,
    *,
    step: float,
    scale: float | None,
) -> None:
    """scale·(round(x/step) + z) of each piece (x, target), the draws z of all pieces one after the other."""
    count = len(pieces)
    sizes = [value.numel() for value, _ in pieces]
    _function(library, "qg_add_steps")(
        (ctypes.c_void_p * count)(*[value.data_ptr() for value, _ in pieces]),
        (ctypes.c_void_p * count)(*[target.data_ptr() for _, target in pieces]),
        (ctypes.c_int64 * (count + 1))(*accumulate(sizes, initial=0)),
        (ctypes.c_int32 * count)(*[INPUTS[value.dtype] for value, _ in pieces]),
        (ctypes.c_int32 * count)(*[OUTPUTS[target.dtype] for _, target in pieces]),
        count,
        None if drawn is None else drawn.data_ptr(),
        step,
        1.0 if scale is None else scale,
        level_number(),
        torch.get_num_threads(),
    )


BLOCK = 16
"""Bytes of a block of AES."""

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


class KeyPlace(NamedTuple):
    """A place in the key stream of AES-256, which the kernel goes on from by itself."""

    key: bytes
    number: int
    position: int
    """Bytes of the stream that were used already."""


def makes_key_streams(library: ctypes.CDLL) -> int:
    """The kind of instructions for AES, 0 where there are none and the caller brings the bytes."""
    return _aes(library, level_number())


@functools.cache
def _aes(library: ctypes.CDLL, number: int) -> int:
    """A processor stays what it is."""
    return int(library.qg_aes(number))


def key_stream(library: ctypes.CDLL, place: KeyPlace, out: NDArray[np.uint8]) -> None:
    """The bytes from this place on, where the library makes key streams. It makes whole blocks."""
    kind = makes_key_streams(library)
    assert kind, "bytes left as they were would be no noise at all"
    first, inside = divmod(place.position, BLOCK)
    count = -(-(inside + len(out)) // BLOCK)
    whole = inside == 0 and len(out) == count * BLOCK
    made = out if whole else np.empty(count * BLOCK, np.uint8)
    _function(library, "qg_key_stream")(place.key, place.number, first, count, _address(made), kind)
    if not whole:
        out[:] = made[inside : inside + len(out)]


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
    found: int = _function(library, "qg_tents")(
        None if isinstance(bits, KeyPlace) else _address(bits),
        place.key,
        place.number,
        place.position,
        makes_key_streams(library),
        ctypes.byref(pieces),
        _address(out),
        len(out),
        at_once,
        _address(places),
        _address(slots),
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
    _function(library, "qg_boxes")(
        ctypes.byref(pieces),
        _address(places),
        _address(slots),
        _address(words),
        len(places),
        _address(out),
        _address(verdicts),
        torch.get_num_threads(),
    )
    return verdicts

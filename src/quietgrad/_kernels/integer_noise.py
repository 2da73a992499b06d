"""Noise in whole numbers in C: key streams, trials of the rounded Gaussian, and the pass that adds them to a sum.

The references are in `_noise.aes`, `_noise.sources` and `_noise.gaussian`; the integers and bits are the same.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor

from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import loaded
from quietgrad._kernels.scratch import Scratch

SCRATCH = Scratch()

PLACE, WHOLE, UNSIGNED, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_uint64, ctypes.c_int
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "qg_add_steps": (*[PLACE] * 5, WHOLE, PLACE, ctypes.c_double, ctypes.c_double, INT, INT),
    "qg_key_stream": (PLACE, UNSIGNED, UNSIGNED, WHOLE, PLACE, INT),
    "qg_tents": (PLACE, PLACE, UNSIGNED, UNSIGNED, INT, PLACE, PLACE, WHOLE, WHOLE, PLACE, PLACE, INT, INT),
    "qg_boxes": (*[PLACE] * 4, WHOLE, PLACE, PLACE, INT),
}
"""Declared to ctypes once: a call then converts its numbers by itself."""


@functools.cache
def _function(library: ctypes.CDLL, name: str) -> Callable[..., Any]:
    function = getattr(library, name)
    function.argtypes = ARGUMENTS[name]
    function.restype = ctypes.c_int64 if name == "qg_tents" else None
    return function  # type: ignore[no-any-return]


def _address(array: NDArray[Any]) -> int | None:
    """Return where the numbers of a writable array begin; numpy's own attribute takes three times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array)) if array.size else None  # type: ignore[arg-type]


# ---- a sum plus noise ----------------------------------------------------------------------------------------

INPUTS = {torch.float32: 0, torch.float64: 1}
OUTPUTS = {torch.float32: 0, torch.float64: 1, torch.int64: 2}

Piece = tuple[Tensor, Tensor]
"""Numbers of a sum, and where what is released of them is written."""


def takes_pieces(pieces: Sequence[Piece], *_: Any, scale: float | None, **__: Any) -> bool:
    """Tell whether the kernel knows all precisions; whole numbers are written where nothing is scaled."""
    return all(
        value.device.type == "cpu"
        and value.dtype in INPUTS
        and target.dtype in OUTPUTS
        and (target.dtype == torch.int64) == (scale is None)
        and value.is_contiguous()
        for value, target in pieces
    )


def add_steps(
    pieces: Sequence[Piece], drawn: Int32[Tensor, " count"] | None, *, step: float, scale: float | None
) -> None:
    """Write scale·(round(x/step) + z) of each piece (x, target), the draws z of all pieces one after the other."""
    count = len(pieces)
    sizes = [value.numel() for value, _ in pieces]
    _function(loaded(), "qg_add_steps")(
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


# ---- key streams ---------------------------------------------------------------------------------------------

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
    return _aes(loaded(), level_number())


@functools.cache
def _aes(library: ctypes.CDLL, number: int) -> int:
    return int(library.qg_aes(number))


def key_stream(place: KeyPlace, out: NDArray[np.uint8]) -> None:
    """Overwrite `out` with the bytes from this place on; the processor makes whole blocks of them."""
    kind = aes_instructions()
    assert kind, "bytes left as they were would be no noise at all"
    first, inside = divmod(place.position, BLOCK)
    count = -(-(inside + len(out)) // BLOCK)
    whole = inside == 0 and len(out) == count * BLOCK
    made = out if whole else np.empty(count * BLOCK, np.uint8)
    _function(loaded(), "qg_key_stream")(place.key, place.number, first, count, _address(made), kind)
    if not whole:
        out[:] = made[inside : inside + len(out)]


# ---- trials of the rounded Gaussian --------------------------------------------------------------------------

BOX = np.dtype([("start", np.int32), ("left", np.int16), ("right", np.int16), ("level", np.float32)])
"""`struct box` of trials.c: one line of the cache a point, not four."""

BELOW, UNSETTLED = 1, 2
"""What `draw_boxes` says of a point: below the curve, or for exact arithmetic to settle; 0 is above the curve."""


class PieceStruct(ctypes.Structure):
    """`struct pieces` of trials.c."""

    _fields_ = (
        ("centre", ctypes.c_void_p),
        ("box", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("tents", "boxes", "strips", "log_std", "log_apart")),
        *((name, ctypes.c_double) for name in ("height", "doubt")),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class PieceTables:
    """The pieces under the Gaussian curve as trials read them; `_noise.pieces` says what they are.

    Args:
        centre: the number of the centre of each slot's tent.
        box: for each box where it begins, the tents on the centres beside it, and the boxes below it.
        tents, boxes: how many slots are tents, and how many boxes are not one of the two ends.
        strips: between two centres, 2^log_apart integers apart.
        height: of a box.
        doubt: closer to the curve than this, float64 does not decide.
        at_once: places whose first words lie side by side, and then their second ones.
    """

    centre: NDArray[np.int8]
    box: NDArray[Any]
    tents: int
    boxes: int
    strips: int
    log_std: int
    log_apart: int
    height: float
    doubt: float
    at_once: int

    @functools.cached_property
    def struct(self) -> PieceStruct:
        """The same for C; it lives as long as the arrays it points into."""
        return PieceStruct(
            self.centre.ctypes.data, self.box.ctypes.data, self.tents, self.boxes, self.strips,
            self.log_std, self.log_apart, self.height, self.doubt,
        )  # fmt: skip


def draw_tents(
    tables: PieceTables, out: NDArray[np.int32], words: KeyStream
) -> tuple[NDArray[np.int32], NDArray[np.int16]]:
    """Overwrite `out` with points of tents; return the places that want a box instead, and their slots."""
    count, kind = len(out), aes_instructions()
    with (
        SCRATCH.borrow("places", count, np.int32) as places,
        SCRATCH.borrow("slots", count, np.int16) as slots,
    ):
        place, raw = words.place(), np.empty(0 if kind else 8 * count, np.uint8)
        if kind:
            words.skip(8 * count)  # the kernel makes these bits itself
        else:
            words.fill(raw)
        found: int = _function(loaded(), "qg_tents")(
            None if kind else _address(raw),
            place.key,
            place.number,
            place.position,
            kind,
            ctypes.byref(tables.struct),
            _address(out),
            count,
            tables.at_once,
            _address(places),
            _address(slots),
            level_number(),
            torch.get_num_threads(),
        )
        if found < 0:
            raise MemoryError("No memory for a draw of noise.")
        return places[:found].copy(), slots[:found].copy()


def draw_boxes(
    tables: PieceTables,
    out: NDArray[np.int32],
    places: NDArray[np.int32],
    slots: NDArray[np.int16],
    words: NDArray[np.uint64],
) -> NDArray[np.uint8]:
    """Write a point of a box to each of the places of `out`; return what became of it.

    Args:
        words: the first words of all places, then the second ones.
    """
    verdicts = np.empty(len(places), np.uint8)
    _function(loaded(), "qg_boxes")(
        ctypes.byref(tables.struct),
        _address(places),
        _address(slots),
        _address(words),
        len(places),
        _address(out),
        _address(verdicts),
        torch.get_num_threads(),
    )
    return verdicts

"""Trials of the rounded Gaussian in C: the integers of `_noise.trials`, the reference, from the same bits."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quietgrad._kernels.key_streams import KeyStream, aes_instructions
from quietgrad._kernels.levels import level_number
from quietgrad._kernels.library import array_address, function
from quietgrad._kernels.scratch import Scratch

SCRATCH = Scratch()

BOX = np.dtype([("start", np.int32), ("left", np.int16), ("right", np.int16), ("level", np.float32)])
"""`struct box` of trials.c: one line of the cache a point, not four."""

BELOW, UNDECIDED = 1, 2
"""What `draw_boxes` says of a point: below the curve, or for exact arithmetic to decide; 0 is above the curve."""


class PieceStruct(ctypes.Structure):
    """`struct pieces` of trials.c."""

    _fields_ = (
        ("centre", ctypes.c_void_p),
        ("box", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("tents", "boxes", "strips", "log_std", "log_apart")),
        *((name, ctypes.c_double) for name in ("height", "margin")),
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
        margin: closer to the curve than this, float64 does not decide.
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
    margin: float
    at_once: int

    @functools.cached_property
    def struct(self) -> PieceStruct:
        """The same for C; it lives as long as the arrays it points into."""
        return PieceStruct(
            self.centre.ctypes.data, self.box.ctypes.data, self.tents, self.boxes, self.strips,
            self.log_std, self.log_apart, self.height, self.margin,
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
            # Fused with AES where the processor has it: random bytes then never leave the cache. Either path uses the
            # same bytes of the stream, so the draws are the same.
            words.skip(8 * count)  # the kernel makes these bits itself
        else:
            words.fill(raw)
        found: int = function("qg_tents")(
            None if kind else array_address(raw),
            place.key,
            place.number,
            place.position,
            kind,
            ctypes.byref(tables.struct),
            array_address(out),
            count,
            tables.at_once,
            array_address(places),
            array_address(slots),
            level_number(),
            torch.get_num_threads(),
        )
        if found < 0:
            raise MemoryError("No memory for a draw of noise.")
        # Copies: the scratch memory goes back to its pool when this block ends.
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
    function("qg_boxes")(
        ctypes.byref(tables.struct),
        array_address(places),
        array_address(slots),
        array_address(words),
        len(places),
        array_address(out),
        array_address(verdicts),
        torch.get_num_threads(),
    )
    return verdicts

"""Keyed draws of Gaussian integers by Triton kernels; the reference is `_noise.keyed`."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int8, Int32
from torch import Tensor

from quietgrad._kernels.gaussian_trials import PieceTables
from quietgrad._kernels.keyed_draws import BLOCKS, TILE, Unfinished
from quietgrad._kernels.transfer import upload

WIDTH = 128
"""Blocks of ChaCha20, or boxes, that a program makes: one a thread of four warps."""
LEFT = 1 << 13
"""Room for places that go back to the host; one coordinate in a million does."""


class DeviceTables(NamedTuple):
    """`PieceTables` on a device.

    Args:
        box: start, tents on the left and on the right of each box.
    """

    centre: Int8[Tensor, " slots"]
    box: Int32[Tensor, " three_a_box"]
    level: Float32[Tensor, " boxes"]


@functools.lru_cache(maxsize=16)
def device_tables(tables: PieceTables, device: torch.device) -> DeviceTables:
    """Copy the tables to a device; they stay there."""
    rows = np.stack([tables.box[field].astype(np.int32) for field in ("start", "left", "right")], 1)
    return DeviceTables(
        upload(torch.from_numpy(tables.centre), device),
        upload(torch.from_numpy(rows.reshape(-1)), device),
        upload(torch.from_numpy(tables.box["level"].copy()), device),
    )


def keyed_trials(
    tables: PieceTables, out: Int32[Tensor, " count"], key: bytes, first: int, width: int = WIDTH
) -> Unfinished:
    """Overwrite `out` with points of tents and boxes; return the places that are left.

    The host waits once, for the list of these.

    Args:
        width: coordinates' blocks that a program takes; it does not change the draw.
    """
    # One in 178 coordinates wants a box: a list of one in 64 overflows with a probability below 10⁻³⁰⁰. It would be
    # seen and drawn again with room for all, from the same key and so with the same result.
    count = len(out)
    left = _draw(tables, out, key, first, width, room=count // 64 + 1024, left_room=LEFT + count // 1024)
    if left is None:
        left = _draw(tables, out, key, first, width, room=count, left_room=count)
    assert left is not None, "no more places want a box than there are places"
    return left


def _draw(
    tables: PieceTables,
    out: Int32[Tensor, " count"],
    key: bytes,
    first: int,
    width: int,
    *,
    room: int,
    left_room: int,
) -> Unfinished | None:
    """Draw with lists of this length; None if they were too short."""
    from quietgrad._kernels.triton_code import noise_code

    on, device = device_tables(tables, out.device), out.device
    words = upload(torch.from_numpy(np.frombuffer(key, "<i4").copy()), device).view(torch.uint32)
    lists = torch.empty(2, room, dtype=torch.int32, device=device)
    left = torch.empty(3, left_room, dtype=torch.int32, device=device)
    found = torch.zeros(2, dtype=torch.int32, device=device)
    tiles = -(-(first + len(out)) // TILE) - first // TILE
    pieces = {"TENTS": tables.tents, "BITS": tables.log_apart, "B": width}
    noise_code.tents[(max(1, -(-tiles * BLOCKS // width)),)](
        out, *lists, found, words, on.centre, first, len(out), room, **pieces
    )
    noise_code.boxes[(max(1, -(-room // width)),)](
        out, *lists, found, *left, found[1:], words, *on, first, room, left_room,
        LOG_STD=tables.log_std, BOXES=tables.boxes, HEIGHT=tables.height, MARGIN=tables.margin, **pieces,
    )  # fmt: skip
    # One copy for counts and lists: the only time that the host waits.
    listed = torch.cat([found, left.flatten()]).cpu().numpy().astype(np.int64)
    boxed, count = listed[:2].tolist()
    if boxed > room or count > left_room:
        return None
    places, slots, trials = listed[2:].reshape(3, left_room)[:, :count]
    return Unfinished(places, slots, trials)

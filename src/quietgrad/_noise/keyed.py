"""Gaussian integers that are a function of a key and of their index in a draw, for devices with kernels of their own.

The bits are ChaCha20's (`_kernels.keyed_draws` says which), the trials those of the rounded Gaussian. A kernel makes
nearly all of them; the rest is decided here in exact arithmetic. Without a kernel everything is drawn here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from jaxtyping import Int32
from numpy.typing import NDArray
from torch import Tensor

from quietgrad._kernels.gaussian_trials import UNDECIDED, PieceTables
from quietgrad._kernels.keyed_draws import BLOCKS, EXACT, TILE, Unfinished
from quietgrad._kernels.registry import operation
from quietgrad._kernels.transfer import upload
from quietgrad._noise.aes import RandomWords
from quietgrad._noise.rounded_gaussian import RoundedGaussian, default
from quietgrad._noise.trials import draw_boxes, points_of_tents

BLOCK = 64
"""Bytes of a block of ChaCha20."""
AT_ONCE = 64 * TILE
"""Coordinates drawn at a time: their words stay in the cache."""


def chacha_blocks(key: bytes, stream: int, block: int, count: int) -> NDArray[np.uint32]:
    """Return the words of `count` blocks of ChaCha20 from one on, [count, 16]."""
    # The package refuses a call whose low 32 bits of the counter would overflow: it is made in two.
    fit = (1 << 32) - block % (1 << 32)
    if count > fit:
        halves = chacha_blocks(key, stream, block, fit), chacha_blocks(key, stream, block + fit, count - fit)
        return np.concatenate(halves)
    nonce = block.to_bytes(8, "little") + stream.to_bytes(8, "little")
    made = Cipher(algorithms.ChaCha20(key, nonce), None).encryptor().update(bytes(BLOCK * count))
    return np.frombuffer(made, "<u4").astype(np.uint32).reshape(count, 16)


class IndexWords(RandomWords):
    """The bits that exact arithmetic takes for one index of a draw, in one trial."""

    def __init__(self, key: bytes, index: int, trial: int) -> None:
        super().__init__(key, EXACT | trial << 32)
        self._index = index

    def fill(self, out: NDArray[Any]) -> None:
        raw = out.view(np.uint8)
        first, inside = divmod(self._used, BLOCK)
        last = -(-(self._used + len(raw)) // BLOCK)
        made = [chacha_blocks(self._key, self._number + c, self._index, 1) for c in range(first, last)]
        raw[:] = np.concatenate(made).view(np.uint8).ravel()[inside : inside + len(raw)]
        self.skip(len(raw))


def fill_keyed(out: Int32[Tensor, " count"], key: bytes, first: int = 0) -> None:
    """Overwrite a contiguous tensor on any device with the integers first, first + 1, … of a key's draw.

    Formal guarantee: given a key stream of fair bits, independent integers with exactly the distribution of
    `RoundedGaussian`: the sequence of trials is the same, and where float64 does not decide, exact arithmetic does. The
    same key and indices give the same integers on every device. Checked by: tests/noise/test_keyed.py,
    tests/triton_kernels/test_noise.py

    Args:
        key: 32 bytes, to be used for one draw only; whoever knows them knows the noise.
    """
    sampler = default()
    left = keyed_trials(sampler.tables, out, key, first)
    if len(left.places):
        values = torch.from_numpy(finish_trials(sampler, key, first, left))
        out.index_copy_(0, upload(torch.from_numpy(left.places), out.device), upload(values, out.device))


@operation(lambda _, out, *__: str(out.device.type))
def keyed_trials(tables: PieceTables, out: Int32[Tensor, " count"], key: bytes, first: int) -> Unfinished:
    """Overwrite `out` with points of tents and boxes; return the places that are left for `finish_trials`.

    How much is left is the implementation's own choice: this one leaves all boxes.

    Checked by: tests/noise/test_keyed.py, tests/triton_kernels/test_noise.py
    """
    drawn = np.empty(len(out), np.int32)
    places, slots = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(out), AT_ONCE):
        part = drawn[start : start + AT_ONCE]
        slot = points_of_tents(tables, part, *_tent_words(key, first + start, len(part)))
        boxed = np.flatnonzero(slot >= tables.tents)
        places.append(boxed + start)
        slots.append(slot[boxed].astype(np.int64) - tables.tents)
    out.copy_(upload(torch.from_numpy(drawn), out.device))
    found = np.concatenate(places)
    return Unfinished(found, np.concatenate(slots), np.ones_like(found))


def _tent_words(key: bytes, first: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the two words of trial 0 of some coordinates."""
    tile = first // TILE
    tiles = -(-(first + count) // TILE) - tile
    words = chacha_blocks(key, 0, tile * BLOCKS, tiles * BLOCKS).view(np.int32)
    # Of a tile: pair j of block b belongs to its coordinate 128·j + b.
    pairs = words.reshape(tiles, BLOCKS, 8, 2).transpose(3, 0, 2, 1).reshape(2, -1)
    u, v = pairs[:, first - tile * TILE :][:, :count].copy()
    return u, v


def finish_trials(sampler: RoundedGaussian, key: bytes, first: int, left: Unfinished) -> NDArray[np.int32]:
    """Find the integers of places that have landed on a box, by as many further trials as each takes."""
    tables = sampler.tables
    values = np.empty(len(left.places), np.int32)
    waiting, slots, trials = np.arange(len(values)), left.slots, left.trials
    while len(waiting):
        indices = (first + left.places[waiting]).tolist()
        words = np.concatenate(
            [chacha_blocks(key, k, i, 1) for k, i in zip(trials.tolist(), indices, strict=True)]
        )
        bits = np.ascontiguousarray(words[:, :4]).view("<u8").T.copy()
        found, everywhere = np.empty(len(waiting), np.int32), np.arange(len(waiting), dtype=np.int32)
        verdicts = draw_boxes(tables, found, everywhere, slots.astype(np.int16), bits.ravel())
        for at in np.flatnonzero(verdicts == UNDECIDED).tolist():
            own, one = IndexWords(key, indices[at], int(trials[at])), slice(at, at + 1)
            (verdicts[at],) = sampler.decide_exactly(
                found, np.array([at]), slots[one].astype(np.intp), bits[0, one], bits[1, one], own
            )
        rejected = np.flatnonzero(verdicts == 0)
        points = np.empty(len(rejected), np.int32)
        next_words = np.ascontiguousarray(words[rejected, 4:6].T).view(np.int32)
        again = points_of_tents(tables, points, *next_words).astype(np.int64)
        found[rejected] = points
        values[waiting] = found
        # A rejected trial is followed by the next, whose first two words these were; most land on a tent.
        boxed = again >= tables.tents
        waiting, trials = waiting[rejected[boxed]], trials[rejected[boxed]] + 1
        slots = again[boxed] - tables.tents
    return values

"""Random bits that privacy may rest on: AES-256 in counter mode, keyed anew for every draw."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from quietgrad._kernels.key_streams import BLOCK, KeyPlace
from quietgrad._kernels.registry import on_the_cpu, operation

ZEROS = memoryview(bytes(1 << 20))
"""What is encrypted: the key stream itself comes out."""


@operation(on_the_cpu)
def key_stream(place: KeyPlace, out: NDArray[np.uint8]) -> None:
    """Overwrite `out` with the bytes of AES-256's key stream from a place on.

    Checked by: tests/noise/test_aes.py, tests/kernels/test_integer_noise.py
    """
    block, inside = divmod(place.position, BLOCK)
    # A counter of 128 bits: eight bytes name the stream, eight count its blocks. Streams of one key never overlap.
    nonce = place.number.to_bytes(8, "big") + block.to_bytes(8, "big")
    stream = Cipher(algorithms.AES(place.key), modes.CTR(nonce)).encryptor()
    stream.update(ZEROS[:inside])
    for start in range(0, len(out), len(ZEROS)):
        part = out[start : start + len(ZEROS)]
        written = stream.update_into(ZEROS[: len(part)], part.data)
        # Bytes left as they were would be no noise at all.
        assert written == len(part), f"AES wrote {written} of {len(part)} bytes"


class RandomWords:
    """A stream of random bits for one draw; nothing of it is kept for the next.

    Formal guarantee: without a key it is the key stream of AES-256 under 32 bytes of OS entropy, which no feasible
    attack tells from fair coins. Whoever draws makes one, uses it up and drops it: no generator outlives a draw, so
    there is none that a fork, a copy, a pickle or a second thread could repeat.

    Args:
        key: 32 bytes that make the stream reproducible; whoever knows them knows the noise.
        number: of the stream, among those of a key.
    """

    def __init__(self, key: bytes | None = None, number: int = 0) -> None:
        self._key, self._number, self._used = key or os.urandom(32), number, 0

    def place(self) -> KeyPlace:
        """Return where the next bits are, for a kernel that makes them itself; `skip` says how many it took."""
        return KeyPlace(key=self._key, number=self._number, position=self._used)

    def skip(self, size: int) -> None:
        """Leave out the next bytes: somebody else has used them."""
        self._used += size

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite a contiguous array of integers with the next bits."""
        raw = out.view(np.uint8)
        key_stream(self.place(), raw)
        self.skip(len(raw))

    def take(self, count: int) -> NDArray[np.uint64]:
        """Return the next `count` words of 64 bits."""
        out = np.empty(count, np.uint64)
        self.fill(out)
        return out

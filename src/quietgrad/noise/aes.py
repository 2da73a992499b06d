"""Random bits that privacy may rest on: AES-256 in counter mode, keyed anew for every draw."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

ZEROS = memoryview(bytes(1 << 20))
"""What is encrypted: the key stream itself comes out."""


class Words:
    """A stream of random bits for one draw; nothing of it is kept for the next.

    Formal guarantee: without a key it is the key stream of AES-256 under 32 bytes of OS entropy, which no feasible
    attack tells from fair coins. Whoever draws makes one, uses it up and drops it: no generator outlives a draw, so
    there is none that a fork, a copy, a pickle or a second thread could repeat.

    Args:
        key: 32 bytes that make the stream reproducible; whoever knows them knows the noise.
        number: of the stream, among those of a key.
    """

    def __init__(self, key: bytes | None = None, number: int = 0) -> None:
        nonce = number.to_bytes(8, "big") + bytes(8)
        self._stream = Cipher(algorithms.AES(key or os.urandom(32)), modes.CTR(nonce)).encryptor()

    def fill(self, out: NDArray[Any]) -> None:
        """Overwrite a contiguous array of integers with the next bits."""
        raw = out.view(np.uint8)
        for start in range(0, len(raw), len(ZEROS)):
            part = raw[start : start + len(ZEROS)]
            written = self._stream.update_into(ZEROS[: len(part)], part.data)
            # Bytes left as they were would be no noise at all.
            assert written == len(part), f"AES wrote {written} of {len(part)} bytes"

    def take(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of 64 bits."""
        out = np.empty(count, np.uint64)
        self.fill(out)
        return out

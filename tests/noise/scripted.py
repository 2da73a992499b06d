"""Random bits that a test chooses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quietgrad._noise.aes import RandomWords


class Scripted(RandomWords):
    """Gives out the bytes it was made with, then fresh ones."""

    def __init__(self, *parts: NDArray[Any]) -> None:
        super().__init__()
        self._left = b"".join(part.tobytes() for part in parts)

    def fill(self, out: NDArray[Any]) -> None:
        super().fill(out)
        raw = out.view(np.uint8)
        known, self._left = self._left[: len(raw)], self._left[len(raw) :]
        raw[: len(known)] = np.frombuffer(known, np.uint8)

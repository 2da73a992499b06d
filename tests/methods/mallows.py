"""The paper's distribution of swaps, slow and obvious."""

from __future__ import annotations

import math

import numpy as np


def equation_11(size: int, kept: int, theta: float) -> np.ndarray:
    """The paper's distribution with exact integers, no logarithms."""
    most = min(kept, size - kept)
    weights = [
        math.comb(kept, i) * math.comb(size - kept, i) * math.exp(-2 * theta * i) for i in range(most + 1)
    ]
    return np.array(weights) / sum(weights)

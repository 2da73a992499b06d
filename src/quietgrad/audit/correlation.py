"""Whether two steps drew the same noise: whoever sees both can subtract it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from jaxtyping import Float64
from numpy import ndarray

MOST_STEPS = 400
"""All pairs of so many steps are compared."""


@dataclass(frozen=True)
class NoiseCorrelation:
    """The most correlated pair of steps.

    Args:
        steps: that pair.
        correlation: of their noise.
        limit: what independent noise stays below, for all pairs at once, with the stated confidence.
    """

    steps: tuple[int, int]
    correlation: float
    limit: float

    @property
    def reused(self) -> bool:
        return abs(self.correlation) > self.limit


def compare_noise(noise: Sequence[Float64[ndarray, " _"]], *, alpha: float) -> NoiseCorrelation:
    """Correlate the noise of all pairs of steps; under independence √n·correlation is a standard normal.

    Args:
        noise: of each step, the same number of first and last coordinates.
        alpha: probability of a false alarm, over all pairs together.
    """
    if len(noise) < 2:
        raise ValueError(f"Expected the noise of at least 2 steps, got {len(noise)}. Audit more steps.")
    length = min(len(step) for step in noise)
    rows = np.stack([step[:length] for step in noise[:MOST_STEPS]])
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    gram = np.abs(np.triu(rows @ rows.T, k=1))
    first, second = np.unravel_index(int(gram.argmax()), gram.shape)
    pairs = len(rows) * (len(rows) - 1) / 2
    limit = float(scipy.special.ndtri(1 - alpha / (2 * pairs))) / float(np.sqrt(length))
    return NoiseCorrelation((int(first), int(second)), float(rows[first] @ rows[second]), limit)

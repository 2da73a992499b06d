"""Counting in log space."""

from __future__ import annotations

from jaxtyping import Float64, Shaped
from numpy import ndarray
from scipy import special


def log_choose(n: int, k: Shaped[ndarray, " m"]) -> Float64[ndarray, " m"]:
    """log C(n, k), for numbers whose binomial coefficients overflow."""
    logs: Float64[ndarray, " m"] = (
        special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    )
    return logs

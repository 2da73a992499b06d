"""Moments of the privacy loss of a Poisson-subsampled step, which Rényi differential privacy is made of."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64, Shaped
from numpy import ndarray
from scipy import special

Orders = Float64[ndarray, " orders"]
"""One number for each Rényi order, or for each whole order k = 0, 1, 2, …"""


def subsampled_moment(order: int, rate: float, moments: Orders) -> float:
    """Return log E_Q[(1 - q + q exp(L))^a], given log E_Q[exp(k L)] for k = 0 … a.

    The binomial theorem makes it a finite sum: Σ_k C(a,k) (1-q)^(a-k) q^k E_Q[exp(k L)]. The mirrored direction is
    smaller for a pair that a symmetry exchanges (Mironov et al. 2019, theorem 5).
    """
    if rate == 1:
        return float(moments[order])
    ks = np.arange(order + 1)
    weights = log_choose(order, ks) + (order - ks) * math.log1p(-rate) + ks * math.log(rate)
    return max(0.0, float(special.logsumexp(weights + moments[: order + 1])))


def log_choose(n: int, k: Shaped[ndarray, " m"]) -> Float64[ndarray, " m"]:
    """Return log C(n, k); the binomial coefficients themselves would overflow."""
    logs: Float64[ndarray, " m"] = (
        special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    )
    return logs

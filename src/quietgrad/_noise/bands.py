"""Coefficients of banded noise: which part of earlier noise a step takes back, and what that is worth.

Noise z is released as C⁻¹z, where C is a lower triangular Toeplitz matrix with the coefficients c₀ … c_{b−1} in each
column. Training adds releases up, so what matters is the noise of sums, A·C⁻¹z for a workload matrix A of partial sums
(with momentum or learning rates in it). Its mean square, at the sensitivity ‖c‖ of one contribution, is

    E(c) = ‖c‖² · (1/T)·Σ_t ‖(A·C⁻¹)_t‖²

All series are Toeplitz too: A·C⁻¹ has the coefficients B = a ∗ c⁻¹, and Σ_t ‖(A·C⁻¹)_t‖² = Σ_i (T − i)·B_i².
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy
from numpy.typing import NDArray

Series = NDArray[np.float64]

WHOLE = 64
"""c₀ as an integer, a power of two: dividing by it is a shift. Larger would follow the best coefficients more closely,
and make the grid of the sum coarser by as much."""


UNBOUNDED = 1e3
"""No useful C⁻¹ has coefficients of this size; nor has a useful C a mean square whose logarithm is as large."""


def square_root(bands: int) -> Series:
    """Return the first coefficients of (1 − x)^(−½), the square root of partial sums: 1, 1/2, 3/8, 5/16, …"""
    ratios = [(2 * j - 1) / (2 * j) for j in range(1, bands)]
    products: Series = np.cumprod(np.array([1.0, *ratios]))
    return products


def inverse(coefficients: Sequence[float] | Series, length: int) -> Series:
    """Return the first coefficients of the power series 1/c(x)."""
    impulse = np.zeros(length)
    impulse[0] = 1.0
    result: Series = scipy.signal.lfilter([1.0], np.asarray(coefficients, dtype=np.float64), impulse)
    return result


def workload(steps: int, momentum: float = 0.0) -> Series:
    """Return a, the weights of one release in the weights of the model at each later step.

    Without momentum each release is added once: 1, 1, 1, … With momentum m, step i adds 1 + m + … + mⁱ of it.
    """
    return np.cumsum(momentum ** np.arange(steps)) if momentum else np.ones(steps)


def mean_square(coefficients: Sequence[float] | Series, a: Series) -> float:
    """Return E(c) for the workload a, relative to noise of std 1 at sensitivity 1."""
    c, steps = np.asarray(coefficients, dtype=np.float64), len(a)
    sums = scipy.signal.fftconvolve(a, inverse(c, steps))[:steps]
    return float((c @ c) * ((steps - np.arange(steps)) @ sums**2) / steps)


def final_square(coefficients: Sequence[float] | Series, a: Series) -> float:
    """Return the mean square noise of the last sum alone, in the units of `mean_square`."""
    c, steps = np.asarray(coefficients, dtype=np.float64), len(a)
    sums = scipy.signal.fftconvolve(a, inverse(c, steps))[:steps]
    return float((c @ c) * (sums @ sums))


def optimise(bands: int, steps: int, momentum: float = 0.0) -> Series:
    """Return the coefficients of least mean square noise, found from the square root by L-BFGS."""
    a, start = workload(steps, momentum), square_root(bands)
    if bands == 1:
        return start
    left = (steps - np.arange(steps)).astype(np.float64)

    def value(rest: Series) -> tuple[float, Series]:
        # With c₀ = 1; the gradient of 1/c(x) in c_j is −x^j/c(x)², so all of them are shifts of one series.
        c = np.concatenate([[1.0], rest])
        series = inverse(c, steps)
        if not np.abs(series).max() < UNBOUNDED:
            return UNBOUNDED, np.zeros(bands - 1)  # the search turns back before this overflows
        sums = scipy.signal.fftconvolve(a, series)[:steps]
        twice = scipy.signal.fftconvolve(sums, series)[:steps]
        size, cost = float(c @ c), float(left @ sums**2)
        slopes = [-2 * float((left * sums)[j:] @ twice[: steps - j]) for j in range(1, bands)]
        return math.log(size * cost), 2 * rest / size + np.array(slopes) / cost

    found = scipy.optimize.minimize(value, start[1:], jac=True, method="L-BFGS-B")
    best = np.concatenate([[1.0], found.x])
    # Where the search ends outside of the region in which C⁻¹ stays bounded, the square root is kept.
    return best if mean_square(best, a) < mean_square(start, a) else start


def whole_coefficients(coefficients: Sequence[float] | Series) -> tuple[int, ...]:
    """Round coefficients to integers with c₀ = WHOLE, without zeros at the end."""
    c = np.asarray(coefficients, dtype=np.float64)
    whole = np.rint(WHOLE * c / c[0]).astype(int)
    last = int(np.flatnonzero(whole).max())
    return tuple(int(value) for value in whole[: last + 1])

"""The discrete Gaussian, sampled exactly from the operating system's CSPRNG.

Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy (2020), Algorithms 1 to 3, vectorised: coin
flips of probability e^{-x} compare a random number with a float64 value of e^{-x}, and a comparison that is closer
than the error of that value is decided by exact arithmetic. x itself is exact, because σ is a power of two.

The idea is rejection. A geometric variable needs only coins of probability 1/e; a uniform remainder and a sign make a
discrete Laplace of it, whose tails are heavier than a Gaussian's. Each Laplace draw is then kept with the probability
that turns its density into the Gaussian's. This code shares nothing with the default sampler, so that a mistake in one
is not a mistake in both.
"""

from __future__ import annotations

import os
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

SIGMA = 1 << 22
"""The standard deviation in steps of the grid: a power of two, so that k²/2σ² is exact in float64."""

MARGIN = 2.0**-44
"""Closer than this, e^{-x} in float64 does not decide; its error is below 2⁻⁴⁸."""


def discrete_gaussian(count: int) -> NDArray[np.int64]:
    """Draw `count` independent integers z with probability ∝ exp(−z²/2σ²), σ = SIGMA.

    A discrete Laplace draw y of scale σ is accepted with probability exp(−(|y| − σ)²/2σ²).
    """
    found = np.empty(count, np.int64)
    missing = count
    while missing:
        drawn = discrete_laplace(missing)
        # exp(−y²/2σ²) divided by exp(−|y|/σ) is exp(−(|y| − σ)²/2σ²) times a constant, so this is the probability
        # that turns a Laplace draw into a Gaussian one.
        squares = (np.abs(drawn) - SIGMA).astype(np.float64) ** 2
        accepted = drawn[flips(squares / (2.0 * SIGMA**2))]
        found[count - missing : count - missing + len(accepted)] = accepted
        missing -= len(accepted)
    return found


def discrete_laplace(count: int) -> NDArray[np.int64]:
    """Draw integers y with probability ∝ exp(−|y|/σ).

    y = ±(u + σv), with u uniform below σ and kept with probability e^{−u/σ}, and v geometric.
    """
    found = np.empty(0, np.int64)
    while len(found) < count:
        tries = 2 * (count - len(found)) + 16
        words = random_words(tries)
        remainder = (words >> np.uint64(42)).astype(np.int64)  # 22 bits: uniform below σ
        kept = flips(remainder / SIGMA)
        size = remainder[kept] + SIGMA * geometric(int(kept.sum()))
        negative = (words[kept] & np.uint64(1)).astype(bool)
        signed = np.where(negative, -size, size)
        found = np.concatenate([found, signed[~(negative & (size == 0))]])  # else 0 would count twice
    return found[:count]


def geometric(count: int) -> NDArray[np.int64]:
    """Count how many flips of probability 1/e succeed before one fails."""
    total = np.zeros(count, np.int64)
    going = np.arange(count)
    while len(going):
        going = going[flips(np.ones(len(going)))]
        total[going] += 1
    return total


def flips(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Flip one coin for each x ≥ 0, true with probability exactly e^{−x}."""
    words = random_words(len(x))
    uniform, chance = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53, np.exp(-x)
    result: NDArray[np.bool_] = uniform < chance
    for doubtful in np.flatnonzero(np.abs(uniform - chance) < MARGIN):
        result[doubtful] = decide_exactly(int(words[doubtful]), float(x[doubtful]))
    return result


def decide_exactly(word: int, x: float) -> bool:
    """Return whether u < e^{−x}, drawing as many further bits of u as the answer takes."""
    bits, digits = word, 64
    while True:
        # u is known to 2⁻ᵈⁱᵍⁱᵗˢ and the chance to far more. If they are closer than 4 units, further bits of u
        # decide.
        bits, digits = (bits << 128) | int.from_bytes(os.urandom(16), "little"), digits + 128
        with localcontext() as context:
            context.prec = digits  # decimal digits: over three times what the bits need
            chance = (-Decimal(x)).exp() * 2**digits
            if abs(Decimal(bits) - chance) > 4:
                return bool(Decimal(bits) < chance)


def random_words(count: int) -> NDArray[np.uint64]:
    """Draw 64-bit words from the CSPRNG."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)

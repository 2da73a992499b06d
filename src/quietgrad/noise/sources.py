"""Where privacy noise comes from: integers with a Gaussian distribution, exact, from bits that nobody can guess.

torch's CPU generator must not make privacy noise: its seed is effectively 32 bits and float32 `randn` never exceeds
5.77. Floating-point noise must not either, whoever draws its bits: which numbers a sum plus such noise can come out at
depends on the sum, and a single release may tell it. So every source draws integers, on the grid of the release.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from quietgrad.noise import rounded_gaussian
from quietgrad.noise.aes import Words
from quietgrad.noise.discrete_gaussian import SIGMA, discrete_gaussian, random_words


class NoiseSource(ABC):
    """Draws integers for releases, and bits for choices.

    Example:
        source: qg.NoiseSource = qg.SeededSource(0)
        drawn = source.integers(5)
        assert drawn.abs().max() < 6 * source.std
    """

    private: bool
    """Whether an adversary cannot reproduce the draws; a report says so if he could."""
    std: int
    """The standard deviation of `integers`: how many steps of a grid make one of the noise."""

    @abstractmethod
    def fill(self, out: Int32[Tensor, " count"]) -> None:
        """Overwrite a contiguous tensor on the CPU with fresh independent Gaussian integers; never the same twice."""

    def integers(self, count: int) -> Int32[Tensor, " count"]:
        """The same in new memory."""
        out = torch.empty(count, dtype=torch.int32)
        self.fill(out)
        return out

    @abstractmethod
    def bits(self, count: int) -> Int64[Tensor, " count"]:
        """Fresh words of 63 fair bits (never negative) on the CPU; never the same twice."""


class EntropySource(NoiseSource):
    """The default: exactly rounded Gaussians from AES-256 under a fresh key of OS entropy for every draw.

    Formal guarantee: a sum on the grid plus these integers is a real-valued Gaussian mechanism, rounded afterwards
    (the sum is a whole number of steps k, and k + round(z) = round(k + z)): post-processing, so ε and δ are exactly the
    Gaussian mechanism's, for every record, dimension and number of steps. What is assumed is that AES-256's key stream
    cannot be told from fair coins. The object holds no state: copies, forks and threads share nothing.
    """

    private = True
    std = 1 << rounded_gaussian.LOG_STD

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        rounded_gaussian.default().fill(out.numpy(), Words())

    def bits(self, count: int) -> Int64[Tensor, " count"]:
        return _bits(Words().take(count))


class SeededSource(NoiseSource):
    """The default's draws from a seed, for tests and debugging: whoever knows the seed can subtract the noise.

    Example:
        source = qg.SeededSource(0)
        private = qg.Privatizer(model, mechanism, batches, noise_source=source)  # private.covered is False
    """

    private = False
    std = 1 << rounded_gaussian.LOG_STD

    def __init__(self, seed: int) -> None:
        self._words = Words(hashlib.sha256(f"quietgrad noise {seed}".encode()).digest())

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        rounded_gaussian.default().fill(out.numpy(), self._words)

    def bits(self, count: int) -> Int64[Tensor, " count"]:
        return _bits(self._words.take(count))


class HardenedSource(NoiseSource):
    """The strictest: discrete Gaussians (Canonne, Kamath, Steinke) whose every bit comes from the OS's CSPRNG.

    Formal guarantee: the discrete Gaussian has the Gaussian mechanism's concentrated privacy exactly; its (ε, δ) are
    those of a Gaussian narrower by a relative 2⁻⁴⁸ (1/24σ² at σ = 2²² steps), which no accountant resolves. Nothing is
    assumed of AES, and the sampler shares no code with the default's. Some hundred times slower.
    """

    private = True
    std = SIGMA

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        out.copy_(torch.from_numpy(discrete_gaussian(len(out))))

    def bits(self, count: int) -> Int64[Tensor, " count"]:
        return _bits(random_words(count))


def as_source(choice: str | NoiseSource) -> NoiseSource:
    """The source by its name, or the object itself."""
    if isinstance(choice, NoiseSource):
        return choice
    if choice == "default":
        return EntropySource()
    if choice == "hardened":
        return HardenedSource()
    raise ValueError(f"Expected noise_source 'default', 'hardened' or a NoiseSource object, got {choice!r}.")


def _bits(words: np.ndarray) -> Int64[Tensor, " count"]:
    return torch.from_numpy((words >> np.uint64(1)).astype(np.int64))

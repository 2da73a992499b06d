"""Where privacy noise comes from: integers with a Gaussian distribution, exact, from bits that nobody can guess.

torch's CPU generator must not make privacy noise: its seed is effectively 32 bits and float32 `randn` never exceeds
5.77. Floating-point noise must not either, whoever draws its bits. Which floats a sum plus such noise can be depends on
the sum, so that the low bits of a single release may reveal it. So every source draws integers, on the grid of the
release. The default's have exactly the distribution of a real Gaussian that was rounded afterwards.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from quietgrad._noise.aes import RandomWords
from quietgrad._noise.discrete_gaussian import SIGMA, discrete_gaussian, random_words
from quietgrad._noise.keyed import fill_keyed
from quietgrad._noise.rounded_gaussian import LOG_STD, default


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
    fills_devices: bool = False
    """Whether `fill` takes tensors of any device and draws there; others are given memory of the CPU."""
    generator: ClassVar[str] = ""
    """What the ledger says of the random bits; empty for AES-256 and the operating system's, as ever."""

    @abstractmethod
    def fill(self, out: Int32[Tensor, " count"]) -> None:
        """Overwrite a contiguous tensor on the CPU with fresh independent Gaussian integers; never the same twice."""

    def for_shard(self, shard: int) -> NoiseSource:
        """Return the source of one shard's noise, which no other shard has: this one, if no two draws are alike."""
        return self

    def integers(self, count: int) -> Int32[Tensor, " count"]:
        """Draw the same into new memory."""
        out = torch.empty(count, dtype=torch.int32)
        self.fill(out)
        return out

    def describe(self) -> dict[str, str]:
        """Return what a ledger says of the source; only what is new, so that earlier ledgers can be resumed."""
        return {"noise generator": self.generator} if self.generator else {}

    @abstractmethod
    def bits(self, count: int) -> Int64[Tensor, " count"]:
        """Fresh words of 63 fair bits (never negative) on the CPU; never the same twice."""


class EntropySource(NoiseSource):
    """The default: exactly rounded Gaussians from AES-256 under a fresh key of OS entropy for every draw.

    Formal guarantee: a sum on the grid plus these integers is a real-valued Gaussian mechanism, rounded afterwards
    (the sum is a whole number of steps k, and k + round(z) = round(k + z)): post-processing, so ε and δ are exactly the
    Gaussian mechanism's, for every record, dimension and number of steps. What is assumed is that AES-256's key stream
    cannot be distinguished from fair coins. The object holds no state: copies, forks and threads share nothing.
    """

    private = True
    std = 1 << LOG_STD

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        default().fill(out.numpy(), RandomWords())

    def bits(self, count: int) -> Int64[Tensor, " count"]:
        return _bits(RandomWords().take(count))


class DeviceSource(EntropySource):
    """Draws on the device of the model: ChaCha20 under a fresh key of OS entropy for every draw.

    Formal guarantee: the default's, with ChaCha20's key stream in the place of AES-256's. Where there is no kernel for
    a device, the same integers are drawn on the CPU and uploaded. Checked by: tests/noise/test_keyed.py
    """

    fills_devices = True
    generator = "ChaCha20"

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        fill_keyed(out, self._new_key())

    def _new_key(self) -> bytes:
        return os.urandom(32)


class SeededSource(NoiseSource):
    """The default's draws from a seed, for tests and debugging.

    Whoever knows the seed can subtract the noise.

    Example:
        source = qg.SeededSource(0)
        private = qg.Privatizer(model, mechanism, batches, noise_source=source)  # private.covered is False
    """

    private = False
    std = 1 << LOG_STD

    def __init__(self, seed: int) -> None:
        self._seed, self._shards = seed, dict[int, SeededSource]()
        self._words = RandomWords(hashlib.sha256(f"quietgrad noise {seed}".encode()).digest())

    def for_shard(self, shard: int) -> NoiseSource:
        # Ranks have equal seeds and would draw equal noise for different rows: each shard gets a stream of its own.
        if shard == 0:
            return self
        if shard not in self._shards:
            self._shards[shard] = SeededSource(self._seed)
            key = hashlib.sha256(f"quietgrad noise {self._seed} shard {shard}".encode()).digest()
            self._shards[shard]._words = RandomWords(key)
        return self._shards[shard]

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        default().fill(out.numpy(), self._words)

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
    """Return the source of a name, or the object itself.

    Raises:
        ValueError: there is no such source.
    """
    if isinstance(choice, NoiseSource):
        return choice
    if choice == "default":
        return EntropySource()
    if choice == "device":
        return DeviceSource()
    if choice == "hardened":
        return HardenedSource()
    raise ValueError(
        f"Expected noise_source 'default', 'device', 'hardened' or a NoiseSource object, got {choice!r}."
    )


def _bits(words: np.ndarray) -> Int64[Tensor, " count"]:
    return torch.from_numpy((words >> np.uint64(1)).astype(np.int64))

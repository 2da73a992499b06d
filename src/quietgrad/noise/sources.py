"""The generators privacy may rest on.

torch's CPU generator must not make privacy noise: its seed is effectively 32 bits and float32 `randn` never exceeds
5.77, which alone costs δ. The default source is PCG64DXSM keyed with 256 bits of OS entropy; its bits become normals
in float64, or in float32 with the tails of float64.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.blocks import Blocks
from quietgrad.noise.discrete_gaussian import SIGMA, discrete_gaussian
from quietgrad.noise.normals import PAIRS, BoxMuller

PART = 2 * PAIRS
"""Normals that a thread makes at a time."""


def fresh_generator() -> np.random.Generator:
    """A generator keyed with 256 bits of OS entropy."""
    return np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))


class NoiseSource(ABC):
    """Where standard normal draws come from.

    Example:
        source: qg.NoiseSource = qg.SeededSource(0)
        normals = source.normals(5)
    """

    private: bool
    """Whether an adversary cannot reproduce the draws; a report says so if he could."""

    @abstractmethod
    def normals(self, count: int) -> Float64[Tensor, " count"]:
        """Fresh independent standard normals on the CPU; never the same twice."""

    def normals_in(self, count: int, dtype: torch.dtype) -> Float[Tensor, " count"]:
        """The same in the precision of what they are added to; to be used up before the next call, which may
        overwrite them."""
        return self.normals(count).to(dtype)


class EntropySource(NoiseSource):
    """The default: fresh OS entropy for every object, so a resumed run never repeats a draw.

    float32 normals are drawn in bulk, into a reused buffer, when they are needed. (A thread that draws ahead beside the
    backward costs more: what it takes from one of torch's threads all others wait for.) All processors but one help:
    torch's threads still spin from their last task.
    """

    private = True

    def __init__(self) -> None:
        self._generator = fresh_generator()
        self._maker = BoxMuller(fresh_generator())
        self._helpers = [BoxMuller(fresh_generator()) for _ in range(torch.get_num_threads() - 2)]
        self._threads = ThreadPoolExecutor(max(1, len(self._helpers)), thread_name_prefix="quietgrad-noise")
        self._buffer = np.empty(0, np.float32)

    def normals(self, count: int) -> Float64[Tensor, " count"]:
        return torch.from_numpy(self._generator.standard_normal(count))

    def normals_in(self, count: int, dtype: torch.dtype) -> Float[Tensor, " count"]:
        if dtype != torch.float32:
            return self.normals(count).to(dtype)
        if len(self._buffer) < count:
            self._buffer = np.empty(count, np.float32)
        # Whoever is free takes the next part.
        parts = iter([self._buffer[start : min(start + PART, count)] for start in range(0, count, PART)])
        helpers = self._helpers[: max(0, -(-count // PART) - 1)]
        helping = [self._threads.submit(maker.fill_all, parts) for maker in helpers]
        self._maker.fill_all(parts)
        for done in helping:
            done.result()
        return torch.from_numpy(self._buffer[:count])


class SeededSource(NoiseSource):
    """Reproducible draws for tests and debugging: whoever knows the seed can subtract the noise.

    Example:
        source = qg.SeededSource(0)
        private = qg.Privatizer(model, mechanism, batches, noise_source=source)  # private.covered is False
    """

    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64DXSM(seed))

    def normals(self, count: int) -> Float64[Tensor, " count"]:
        return torch.from_numpy(self._generator.standard_normal(count))


class HardenedSource(NoiseSource):
    """The provable one: sums are rounded to a grid of integers and get discrete Gaussian noise from the OS's CSPRNG.

    Formal guarantee: no floating-point number that depends on the data and the noise is ever rounded before release,
    so the mechanism that is analysed is the one that runs. Rounding p coordinates to a grid of step γ adds γ√p to the
    sensitivity, for which the noise is widened; γ = std/2²², and at that width the discrete Gaussian's privacy profile
    is the continuous one's (they differ by less than e^{−10¹⁴}).
    """

    private = True

    def normals(self, count: int) -> Float64[Tensor, " count"]:
        return torch.from_numpy(discrete_gaussian(count) / SIGMA)

    def widening(self, count: int, multiplier: float) -> float:
        """The factor on sensitivity and std that pays for rounding `count` coordinates.

        With std = σS' and γ = std/2²²: S' = S + γ√p = S/(1 − σ√p/2²²).
        """
        lost = ROUNDING * multiplier * math.sqrt(count) / SIGMA
        if lost > 0.5:
            raise ValueError(
                f"The hardened source cannot serve {count} coordinates at a noise multiplier of {multiplier}: rounding "
                "to its grid would cost more than the noise. Use noise_source='default'."
            )
        return 1.0 / (1.0 - lost)

    def on_grid(self, blocks: Blocks, std: float) -> Blocks:
        """γ·(round(x/γ) + z) for every coordinate."""
        grid, noisy = std / SIGMA, {}
        for name, block in blocks.items():
            noise = torch.from_numpy(discrete_gaussian(block.numel())).view(block.shape)
            steps = (block.double() / grid).round().to("cpu", torch.int64) + noise
            noisy[name] = (steps.double() * grid).to(block.device, block.dtype)
        return noisy


ROUNDING = 1.0 + 1e-6
"""Two roundings to a grid move a coordinate by at most one step, and float64's division by a millionth of one."""


def as_source(choice: str | NoiseSource) -> NoiseSource:
    """The source by its name, or the object itself."""
    if isinstance(choice, NoiseSource):
        return choice
    if choice == "default":
        return EntropySource()
    if choice == "hardened":
        return HardenedSource()
    raise ValueError(f"Expected noise_source 'default', 'hardened' or a NoiseSource object, got {choice!r}.")

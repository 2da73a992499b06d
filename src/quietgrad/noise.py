"""The second border: ClippedSum ──noise──▶ Released, and the generators privacy may rest on.

torch's CPU generator must not make privacy noise: its seed is effectively 32 bits and float32 `randn` never exceeds
5.77, which alone costs δ. The default source is PCG64DXSM keyed with 256 bits of OS entropy, drawing in float64.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from quietgrad.accounting import events
from quietgrad.gradients.base import Blocks
from quietgrad.reduction import Reducer
from quietgrad.schedules import Schedule, value_at
from quietgrad.stages import ClippedSum, Released


def fresh_generator() -> np.random.Generator:
    """A generator keyed with 256 bits of OS entropy."""
    return np.random.Generator(np.random.PCG64DXSM(secrets.randbits(256)))


class NoiseSource(ABC):
    """Where standard normal draws come from."""

    private: bool
    """Whether an adversary cannot reproduce the draws; a report says so if he could."""

    @abstractmethod
    def normals(self, count: int) -> Float64[Tensor, " count"]:
        """Fresh independent standard normals on the CPU; never the same twice."""


class EntropySource(NoiseSource):
    """The default: fresh OS entropy for every object, so a resumed run never repeats a draw."""

    private = True

    def __init__(self) -> None:
        self._generator = fresh_generator()

    def normals(self, count: int) -> Float64[Tensor, " count"]:
        return torch.from_numpy(self._generator.standard_normal(count))


class SeededSource(NoiseSource):
    """Reproducible draws for tests and debugging: whoever knows the seed can subtract the noise."""

    private = False

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64DXSM(seed))

    def normals(self, count: int) -> Float64[Tensor, " count"]:
        return torch.from_numpy(self._generator.standard_normal(count))


def as_source(choice: str | NoiseSource) -> NoiseSource:
    """The source by its name, or the object itself."""
    if isinstance(choice, NoiseSource):
        return choice
    if choice == "default":
        return EntropySource()
    raise ValueError(f"Expected noise_source 'default' or a NoiseSource object, got {choice!r}.")


class Noise(ABC):
    """Turns a clipped sum into a release, and says what that costs."""

    @abstractmethod
    def multiplier(self, noise_multiplier: float, step: int) -> float:
        """The effective Gaussian multiplier of a step."""

    @abstractmethod
    def event(self, noise_multiplier: float, step: int) -> events.Event:
        """What all releases of a step cost together."""

    @abstractmethod
    def release(
        self,
        total: ClippedSum,
        *,
        std: float,
        divisor: float,
        source: NoiseSource,
        reducer: Reducer,
        step: int,
    ) -> Released:
        """(total + std·z)/divisor, summed over ranks."""


@dataclass(frozen=True, kw_only=True)
class Gaussian(Noise):
    """total + N(0, std²·I).

    Formal guarantee: with std = σ/√f·S for a release of sensitivity S and share f, all releases of a batch together
    are one Gaussian mechanism of multiplier σ, because Σ_j (S_j/s_j)² = Σ_j f_j/σ² = σ⁻².

    Args:
        factor: σ is multiplied by this at each step; a schedule makes the ledger's phases.
    """

    factor: float | Schedule = 1.0

    def multiplier(self, noise_multiplier: float, step: int) -> float:
        factor = value_at(self.factor, step)
        if not factor > 0:
            raise ValueError(f"Expected a noise factor > 0 at step {step}, got {factor}.")
        return noise_multiplier * factor

    def event(self, noise_multiplier: float, step: int) -> events.Event:
        return events.Gaussian(noise_multiplier=self.multiplier(noise_multiplier, step))

    def release(
        self,
        total: ClippedSum,
        *,
        std: float,
        divisor: float,
        source: NoiseSource,
        reducer: Reducer,
        step: int,
    ) -> Released:
        noisy = reducer.sum(add_normals(total.blocks, std / math.sqrt(reducer.world), source))
        return Released(
            blocks={name: block / divisor for name, block in noisy.items()},
            std=std / divisor,
            sensitivity=total.sensitivity / divisor,
        )


def add_normals(blocks: Blocks, std: float, source: NoiseSource) -> Blocks:
    """Every coordinate plus std·z, one draw for all blocks; std 0 (a non-private run) draws nothing."""
    if std == 0.0:
        return dict(blocks)
    draws = source.normals(sum(block.numel() for block in blocks.values()))
    noisy, start = {}, 0
    for name, block in blocks.items():
        part = draws[start : start + block.numel()].view(block.shape)
        noisy[name] = block + (std * part).to(block.device, block.dtype)
        start += block.numel()
    return noisy

"""The second border: ClippedSum ──noise──▶ Released, and the generators privacy may rest on.

torch's CPU generator must not make privacy noise: its seed is effectively 32 bits and float32 `randn` never exceeds
5.77, which alone costs δ. The default source is PCG64DXSM keyed with 256 bits of OS entropy; its bits become normals
in float64, or in float32 with the tails of float64.
"""

from __future__ import annotations

import math
import secrets
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.accounting import events
from quietgrad.discrete_gaussian import SIGMA, discrete_gaussian
from quietgrad.gradients.base import Blocks
from quietgrad.normals import BoxMuller
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

    def normals_in(self, count: int, dtype: torch.dtype) -> Float[Tensor, " count"]:
        """The same in the precision of what they are added to."""
        return self.normals(count).to(dtype)


class EntropySource(NoiseSource):
    """The default: fresh OS entropy for every object, so a resumed run never repeats a draw.

    float32 normals of the next release are drawn by a thread while the next batch is computed.
    """

    private = True

    def __init__(self) -> None:
        self._generator = fresh_generator()
        self._bulk = BoxMuller(fresh_generator())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quietgrad-noise")
        self._ahead: Future[Tensor] | None = None

    def normals(self, count: int) -> Float64[Tensor, " count"]:
        return torch.from_numpy(self._generator.standard_normal(count))

    def normals_in(self, count: int, dtype: torch.dtype) -> Float[Tensor, " count"]:
        if dtype != torch.float32:
            return self.normals(count).to(dtype)
        ready = self._ahead.result() if self._ahead is not None else None
        if ready is None or len(ready) != count:
            ready = self._draw(count)
        self._ahead = self._thread.submit(self._draw, count)
        return ready

    def _draw(self, count: int) -> Float[Tensor, " count"]:
        out = np.empty(count, np.float32)
        self._bulk.fill(out)
        return torch.from_numpy(out)


class SeededSource(NoiseSource):
    """Reproducible draws for tests and debugging: whoever knows the seed can subtract the noise."""

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
        if isinstance(source, HardenedSource) and std > 0.0:
            return self._hardened(total, std, divisor, source, reducer)
        noisy = reducer.sum(add_normals(total.blocks, std / math.sqrt(reducer.world), source))
        return Released(
            blocks=_divided(noisy, divisor), std=std / divisor, sensitivity=total.sensitivity / divisor
        )

    def _hardened(
        self, total: ClippedSum, std: float, divisor: float, source: HardenedSource, reducer: Reducer
    ) -> Released:
        count = sum(block.numel() for block in total.blocks.values())
        wide = source.widening(count, std / total.sensitivity)
        noisy = reducer.at_one_place(total.blocks, lambda blocks: source.on_grid(blocks, wide * std))
        return Released(
            blocks=_divided(noisy, divisor),
            std=wide * std / divisor,
            sensitivity=wide * total.sensitivity / divisor,
        )


def _divided(blocks: Blocks, divisor: float) -> Blocks:
    return dict(zip(blocks, torch._foreach_div(list(blocks.values()), divisor), strict=True))


def add_normals(blocks: Blocks, std: float, source: NoiseSource) -> Blocks:
    """Every coordinate plus std·z, one draw for all blocks; std 0 (a non-private run) draws nothing."""
    if std == 0.0:
        return dict(blocks)
    values = list(blocks.values())
    sizes = [block.numel() for block in values]
    draws = source.normals_in(sum(sizes), values[0].dtype) if values else torch.empty(0)
    parts = [
        part.view(block.shape).to(block.device, block.dtype)
        for part, block in zip(draws.split(sizes), values, strict=True)
    ]
    torch._foreach_mul_(parts, std)  # in place: the draws are nobody else's
    torch._foreach_add_(parts, values)
    return dict(zip(blocks, parts, strict=True))

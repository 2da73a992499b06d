"""The second border: ClippedSum ──noise──▶ Released."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad.accounting import events
from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.packing import packed
from quietgrad.gradients.stages import ClippedSum, Released
from quietgrad.noise.base import Noise, NoiseDraw
from quietgrad.noise.sources import PART, HardenedSource, NoiseSource
from quietgrad.schedules import Schedule, value_at

AT_ONCE = 8 * PART
"""Coordinates that are noised at a time: their draws stay in the cache."""


@dataclass(frozen=True, kw_only=True)
class Gaussian(Noise):
    """total + N(0, std²·I).

    Formal guarantee: with std = σ/√f·S for a release of sensitivity S and share f, all releases of a batch together
    are one Gaussian mechanism of multiplier σ, because Σ_j (S_j/s_j)² = Σ_j f_j/σ² = σ⁻².

    Args:
        factor: σ is multiplied by this at each step; a schedule makes the ledger's phases.

    Example:
        noise = qg.Gaussian(factor=qg.schedules.Linear(1.0, 2.0, 100))  # twice as loud after 100 steps
        mechanism = replace(qg.methods.dp_sgd(), noise=noise)
    """

    factor: float | Schedule = 1.0

    def multiplier(self, noise_multiplier: float, step: int) -> float:
        factor = value_at(self.factor, step)
        if not factor > 0:
            raise ValueError(f"Expected a noise factor > 0 at step {step}, got {factor}.")
        return noise_multiplier * factor

    def event(self, noise_multiplier: float, step: int) -> events.Event:
        return events.GaussianEvent(noise_multiplier=self.multiplier(noise_multiplier, step))

    def release(self, total: ClippedSum, draw: NoiseDraw) -> Released:
        if isinstance(draw.source, HardenedSource) and draw.std > 0.0:
            return self._hardened(total, draw, draw.source)
        part = draw.std / math.sqrt(draw.reducer.world)
        noisy = draw.reducer.all_reduce(add_normals(total.blocks, part, draw.source))
        torch._foreach_div_(list(noisy.values()), draw.divisor)
        return Released(
            blocks=noisy, std=draw.std / draw.divisor, sensitivity=total.sensitivity / draw.divisor
        )

    def _hardened(self, total: ClippedSum, draw: NoiseDraw, source: HardenedSource) -> Released:
        count = sum(block.numel() for block in total.blocks.values())
        wide = source.widening(count, draw.std / total.sensitivity)
        noisy = draw.reducer.reduce_to_rank0(
            total.blocks, lambda blocks: source.on_grid(blocks, wide * draw.std)
        )
        torch._foreach_div_(list(noisy.values()), draw.divisor)
        return Released(
            blocks=noisy,
            std=wide * draw.std / draw.divisor,
            sensitivity=wide * total.sensitivity / draw.divisor,
        )


def add_normals(blocks: Blocks, std: float, source: NoiseSource) -> Blocks:
    """Every coordinate plus std·z in new tensors; std 0 (a non-private run) draws nothing."""
    noisy = {
        name: torch.empty_like(block, memory_format=torch.contiguous_format) for name, block in blocks.items()
    }
    for group in _drawn_together(list(blocks.values()), list(noisy.values())):
        first, count = group[0][0], sum(value.numel() for value, _ in group)
        draws = source.normals_in(count, first.dtype) if std else torch.zeros(count, dtype=first.dtype)
        parts = draws.split([value.numel() for value, _ in group])
        for (value, target), z in zip(group, parts, strict=True):
            torch.add(value, z.to(value.device, value.dtype), alpha=std, out=target)
    return noisy


def _drawn_together(values: list[Tensor], out: list[Tensor]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Flat pieces of the blocks with their places in `out`, so many at a time that their draws stay in the cache."""
    pieces = (
        piece
        for value, target in zip(values, out, strict=True)
        for piece in zip(value.reshape(-1).split(AT_ONCE), target.view(-1).split(AT_ONCE), strict=True)
    )
    return packed(pieces, lambda piece: piece[0].numel(), AT_ONCE)

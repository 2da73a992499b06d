"""Gaussian noise, added in whole steps of a grid; what rounding to the grid costs is paid for by wider noise."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int32
from torch import Tensor

from quietgrad._gradients.blocks import Blocks, pack
from quietgrad._gradients.grid import WORST_ROUNDING, Grid
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._kernels.noise_steps import Piece
from quietgrad._kernels.registry import operation
from quietgrad._kernels.scratch import Scratch
from quietgrad._kernels.transfer import upload
from quietgrad._noise.base import Noise, NoiseDraw, NoiseState
from quietgrad._noise.sources import NoiseSource
from quietgrad.accounting import events
from quietgrad.schedules import Schedule, value_at

DRAWN = 1 << 20
"""Coordinates whose noise is drawn at a time: a call of the source costs as much as some thousand draws."""
DRAWN_ON_DEVICE = 1 << 26
"""The same on a device, where the host waits once for each: 256 MB of integers."""
AT_ONCE = 1 << 15
"""Coordinates that torch rounds and converts at a time: they stay in the cache."""
SCRATCH = Scratch()


@dataclass(frozen=True, kw_only=True)
class Widened:
    """A release on a grid.

    Args:
        grid: the multiples of γ that the sum is rounded to.
        std: of its noise, s' = std·S'/S.
        sensitivity: S' = S + γ√p, of the rounded sum.
    """

    grid: Grid
    std: float
    sensitivity: float

    def make_release(self, blocks: Blocks, divisor: float, *, gain: float = 1.0) -> Released:
        """Make the release, with the noise and sensitivity that it really has."""
        return Released(
            blocks=blocks, std=self.std / divisor, sensitivity=self.sensitivity / divisor, gain=gain
        )


def widen_noise(*, std: float, sensitivity: float, coordinates: int, steps: float) -> Widened:
    """Choose the grid of a release, and widen its noise to pay for rounding.

        γ = s'/steps,   S' = S + γ√p,   s'/S' = std/S    ⇒    S' = S/(1 − (std/S)·√p/steps)

    Why: noise is drawn as integers, so the sum is first rounded to whole steps γ. Rounding moves each coordinate by up
    to half a step, so two neighbouring sums may end up γ√p further apart than they were: the sensitivity grows from S
    to S'. Noise of the old std would then be too little. It is widened by the same factor, so that the ratio of noise
    to sensitivity, which is all that the accountant sees, stays what it was. But wider noise means a wider step γ at
    the same number of steps, and so a larger S' again; the equation on the right is where the two meet. With 2²⁶ steps,
    a million coordinates and std = S the factor is 1 + 2·10⁻⁵.

    Args:
        std: of the noise, before rounding is paid for; > 0.
        sensitivity: S, of the sum before it is rounded.
        coordinates: p.
    """
    # Above one half the fixed point below explodes: at one, no width of noise would pay for its own rounding.
    lost = WORST_ROUNDING * std / sensitivity * math.sqrt(coordinates) / steps
    if lost > 0.5:
        raise ValueError(
            f"Noise of {std / sensitivity:g} times the sensitivity on {coordinates} coordinates would have to be "
            f"doubled to pay for rounding to a grid of {steps:g} steps a standard deviation. Release fewer "
            "coordinates, lower the noise multiplier, or use noise_source='default', whose grid is finest."
        )
    wide = 1.0 / (1.0 - lost)
    return Widened(grid=Grid(wide * std / steps), std=wide * std, sensitivity=wide * sensitivity)


@dataclass(frozen=True, kw_only=True)
class Gaussian(Noise):
    """total + N(0, std²·I), rounded to a grid.

        γ·(round(total/γ) + z)/divisor,    z exactly rounded Gaussian integers (`NoiseSource.integers`)

    Formal guarantee: with std = σ/√f·S for a release of sensitivity S and share f, all releases of a batch together
    are one Gaussian mechanism of multiplier σ, because Σ_j (S_j/s_j)² = Σ_j f_j/σ² = σ⁻². Rounding the sum first makes
    its sensitivity S + γ√p, which S_j and s_j include (`widen_noise`); everything after the integer sum is a function
    of it. Integers add exactly: order, micro-batches and ranks do not touch what is released.

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

    def release(self, total: ClippedSum, draw: NoiseDraw, state: NoiseState) -> tuple[Released, NoiseState]:
        if draw.std == 0.0:
            return without_noise(total, draw), state
        wide = on_grid(total, draw)
        blocks = add_to_grid(total, wide.grid, draw, draw.source)
        return wide.make_release(blocks, draw.divisor, gain=draw.reducer.noise_over_accounted), state


def add_to_grid(total: ClippedSum, grid: Grid, draw: NoiseDraw, source: NoiseSource) -> Blocks:
    """Return γ·(Σ over ranks of round(total/γ) + z)/divisor, with integers z of the source."""
    scale = grid.step / draw.divisor
    # Alone, rounding, noise and scaling are one pass over the sum. Ranks must first add whole numbers: float sums
    # depend on the order of the ranks, and so would what is released.
    if total.space.is_sharded:
        return _add_to_shards(total, grid, source.for_shard(draw.reducer.rank), scale)
    if draw.reducer.world == 1:
        out = total.space.empty()
        add_integers(total.blocks, grid, source, out, scale=scale)
        return out
    # One rank draws for all: the sum has the noise once, whatever the number of ranks. Ranks that do not trust each
    # other all draw: each draw is a share, of which `honest` make the noise that `on_grid` has chosen the step for.
    draws = draw.reducer.rank == 0 or draw.reducer.honest is not None
    steps = total.space.empty(torch.int64)
    add_integers(total.blocks, grid, source if draws else None, steps)
    summed = draw.reducer.all_reduce(steps)
    del steps
    # Each block of integers goes before the next one is converted.
    return {name: (summed.pop(name).double() * scale).to(total.released_in(name)) for name in list(summed)}


def _add_to_shards(total: ClippedSum, grid: Grid, source: NoiseSource, scale: float) -> Blocks:
    """Add the noise of this rank's rows, which are on no other rank. The sum is used up.

    Each block of the sum is freed before the next one is released: both together would take half as much again.
    """
    out: Blocks = {}
    for name in list(total.blocks):
        block = total.blocks.pop(name)
        out[name] = torch.empty(block.shape, dtype=total.released_in(name), device=block.device)
        add_integers({name: block}, grid, source, {name: out[name]}, scale=scale)
    return out


def on_grid(total: ClippedSum, draw: NoiseDraw) -> Widened:
    """Choose the grid of a sum's noise: fine enough that a draw, or as many shares as are honest, make up its std."""
    steps = draw.source.std * draw.reducer.noise_over_draw
    return widen_noise(
        std=draw.std, sensitivity=total.sensitivity, coordinates=total.coordinates, steps=steps
    )


def without_noise(total: ClippedSum, draw: NoiseDraw) -> Released:
    """Return total/divisor, for a non-private run (σ = 0)."""
    sums = total.wide() if total.space.is_sharded else draw.reducer.all_reduce(total.wide())
    blocks = {name: (block / draw.divisor).to(total.released_in(name)) for name, block in sums.items()}
    return Released(blocks=blocks, std=0.0, sensitivity=total.sensitivity / draw.divisor)


def add_integers(
    blocks: Blocks, grid: Grid, source: NoiseSource | None, out: Blocks, *, scale: float | None = None
) -> None:
    """Write scale·(round(x/γ) + z) of every coordinate into contiguous tensors.

    Args:
        source: of z; None adds nothing.
        scale: None writes the whole numbers themselves.
    """
    on_device = source is not None and source.fills_devices
    for group in _drawn_together(list(blocks.values()), list(out.values()), on_device=on_device):
        if source is None:
            add_steps(group, None, step=grid.step, scale=scale)
            continue
        # The draws of several small blocks are made together: a call of the sampler has a fixed cost, and a model has
        # many biases.
        with _memory_for(group, on_device=on_device) as drawn:
            source.fill(drawn)
            add_steps(group, drawn, step=grid.step, scale=scale)


@contextlib.contextmanager
def _memory_for(group: list[Piece], *, on_device: bool) -> Iterator[Int32[Tensor, " count"]]:
    """Lend memory for the draws of some pieces, on the CPU or where the pieces are."""
    count, device = sum(value.numel() for value, _ in group), group[0][0].device
    if on_device and device.type != "cpu":
        yield torch.empty(count, dtype=torch.int32, device=device)
        return
    # Scratch memory is used again, because fresh pages would cost more than the copy.
    with SCRATCH.borrow("drawn", count, np.int32) as memory:
        yield torch.from_numpy(memory)


@operation(lambda pieces, _: pieces[0][0].device.type)
def add_steps(
    pieces: Sequence[Piece], drawn: Int32[Tensor, " count"] | None, *, step: float, scale: float | None
) -> None:
    """Write scale·(round(x/γ) + z) of each piece (x, target), the draws z of all pieces one after the other.

    Args:
        scale: None writes the whole numbers themselves.

    Checked by: tests/kernels/test_integer_noise.py, tests/noise/test_gaussian.py
    """
    grid, start = Grid(step), 0
    device = pieces[0][0].device
    drawn = None if drawn is None else upload(drawn, device)
    at_once = AT_ONCE if device.type == "cpu" else DRAWN
    for values, targets in pieces:
        for first in range(0, values.numel(), at_once):
            value, target = values[first : first + at_once], targets[first : first + at_once]
            # In float64 throughout: whole numbers up to 2⁵³ are exact there, so sum and noise add without another
            # rounding.
            whole = grid.round(value)
            if drawn is not None:
                whole += drawn[start + first : start + first + len(value)]
            target.copy_(whole if scale is None else whole.mul_(scale))
        start += values.numel()


def _drawn_together(values: list[Tensor], out: list[Tensor], *, on_device: bool) -> Iterator[list[Piece]]:
    """Flat pieces of the blocks with their places in `out`, as many at a time as are drawn together."""
    at_once = DRAWN_ON_DEVICE if on_device and values and values[0].device.type != "cpu" else DRAWN
    pieces = (
        piece
        for value, target in zip(values, out, strict=True)
        for piece in _pieces(value.reshape(-1), target.view(-1), at_once)
    )
    return pack(pieces, lambda piece: piece[0].numel(), at_once)


def _pieces(value: Tensor, target: Tensor, at_once: int) -> Iterable[Piece]:
    """Parts that are drawn together; most blocks are one, and a model has many."""
    if value.numel() <= at_once:
        return ((value, target),)
    return zip(value.split(at_once), target.split(at_once), strict=True)

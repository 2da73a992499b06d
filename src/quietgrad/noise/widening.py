"""What rounding to a grid costs: a little more sensitivity, for which the noise is widened."""

from __future__ import annotations

import math
from dataclasses import dataclass

from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.grid import WORST_ROUNDING, Grid
from quietgrad.gradients.stages import Released
from quietgrad.noise.sources import NoiseSource


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

    def released(self, blocks: Blocks, divisor: float) -> Released:
        """The release, with what its noise and sensitivity really are."""
        return Released(blocks=blocks, std=self.std / divisor, sensitivity=self.sensitivity / divisor)


def widened(*, std: float, sensitivity: float, coordinates: int, source: NoiseSource) -> Widened:
    """The grid of a release, of `source.std` steps to a standard deviation of its noise.

        γ = s'/steps,   S' = S + γ√p,   s'/S' = std/S    ⇒    S' = S/(1 − (std/S)·√p/steps)

    The ratio of noise to sensitivity, which is what the accountant is told, stays what it was.

    Args:
        std: of the noise, before rounding is paid for; > 0.
        sensitivity: S, of the sum before it is rounded.
        coordinates: p.
    """
    lost = WORST_ROUNDING * std / sensitivity * math.sqrt(coordinates) / source.std
    if lost > 0.5:
        raise ValueError(
            f"Noise of {std / sensitivity:g} times the sensitivity on {coordinates} coordinates would have to be "
            f"doubled to pay for rounding to a grid of {source.std} steps a standard deviation. Release fewer "
            "coordinates, lower the noise multiplier, or use noise_source='default', whose grid is finest."
        )
    wide = 1.0 / (1.0 - lost)
    return Widened(grid=Grid(wide * std / source.std), std=wide * std, sensitivity=wide * sensitivity)

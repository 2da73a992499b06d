"""Sums as whole numbers of steps: integers add exactly, so neither order nor grouping touches a release."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

LARGEST = 2.0**50
"""Steps that a coordinate may be away from 0, some 2²⁴ standard deviations of noise: it is cut off there, which moves
no two sums apart. Up to here float64's quotient is right to an eighth of a step, and a product can be rounded back."""

WORST_ROUNDING = 1.25
"""Steps that rounding adds, at most, to the distance of two coordinates: half a step and an eighth for each."""


@dataclass(frozen=True)
class Grid:
    """The multiples of a step γ.

    Formal guarantee: `steps` moves any two vectors of p coordinates apart by at most γ√p·WORST_ROUNDING more than they
    were, and `steps(values(k)) = k` for |k| ≤ LARGEST.
    Checked by: tests/gradients/test_grid.py

    Args:
        step: γ > 0.
    """

    step: float

    def round(self, values: Float[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """Compute round(x/γ), whole numbers that float64 holds exactly."""
        # A copy, since the operations that follow work in place and the sum belongs to the caller.
        quotient = values.to(torch.float64, copy=True)
        return quotient.div_(self.step).clamp_(-LARGEST, LARGEST).round_()

    def steps(self, values: Float[Tensor, "*shape"]) -> Int64[Tensor, "*shape"]:
        """Compute round(x/γ) as integers, which may be added up without end."""
        return self.round(values).to(torch.int64)

    def values(self, steps: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """Compute γ·k."""
        return steps.to(torch.float64).mul_(self.step)

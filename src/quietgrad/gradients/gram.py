"""Norms without gradients: ‖Σ_t b_t a_tᵀ‖² = Σ_ts (a_t·a_s)(b_t·b_s), never below the truth.

A float32 Gram norm falls below the true one when tokens cancel. Its error is at most u·(Σ_t ‖a_t‖‖b_t‖)², so that
much is added; where it would over-clip by more than 1%, the caller must form the row instead. So is what float32 loses
of products too small for it: at most `LOST` each, in the Gram matrices and in the product of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad.gradients.norms import LOST

OVERCLIP = 0.02
"""A bound above this part of ‖G‖² over-clips by 1%."""


@dataclass(frozen=True)
class GramNorms:
    """Squared norms with their rounding bound added, and the rows for which the bound is too coarse.

    Args:
        lengths: Σ_t ‖a_t‖‖b_t‖, what all positions add up to at most.
    """

    squared: Float64[Tensor, " n"]
    lengths: Float64[Tensor, " n"]
    careful: Bool[Tensor, " n"]

    def with_formed(
        self, norms_of: Callable[[Bool[Tensor, " n"]], Float64[Tensor, " k"]]
    ) -> Float64[Tensor, " n"]:
        """The norms, those of the careful rows replaced by `norms_of(careful)`."""
        if not bool(self.careful.any()):
            return self.squared
        norms = self.squared.clone()
        norms[self.careful] = norms_of(self.careful)
        return norms


def gram_norms(inputs: Float[Tensor, "n t t"], outputs: Float[Tensor, "n t t"], *, longest: int) -> GramNorms:
    """From the Gram matrices of the factors.

    Args:
        longest: the longest inner product inside the Gram matrices, for the bound.
    """
    positions = inputs.shape[1]
    squared = torch.linalg.vecdot(inputs, outputs).double().sum(1)
    lost = LOST * max(longest, positions)
    a, b = (
        (gram.diagonal(dim1=1, dim2=2).double().clamp_min(0.0) + lost).sqrt() for gram in (inputs, outputs)
    )
    rounded = unit(inputs.dtype, max(longest, positions)) * (a * b).sum(1).square()
    flushed = lost * (a.sum(1).square() + b.sum(1).square() + positions)
    bound = rounded + flushed
    careful = ~(bound <= OVERCLIP * squared)  # also where a norm is not a number
    return GramNorms(squared.clamp_min(0.0) + bound, (a * b).sum(1), careful)


def unit(dtype: torch.dtype, longest: int) -> float:
    """u of the bound: a few ulps, growing like the square root of the longest sum."""
    return float(torch.finfo(dtype).eps) * (4.0 + math.sqrt(longest))

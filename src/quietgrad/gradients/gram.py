"""Norms without gradients: ‖Σ_t b_t a_tᵀ‖² = Σ_ts (a_t·a_s)(b_t·b_s), never below the truth.

A float32 Gram norm falls below the true one when tokens cancel. Its error is at most u·(Σ_t ‖a_t‖‖b_t‖)², so that
much is added; where it would over-clip by more than 1%, the caller must form the row instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

OVERCLIP = 0.02
"""A bound above this part of ‖G‖² over-clips by 1%."""


@dataclass(frozen=True)
class GramNorms:
    """Squared norms with their rounding bound added, and the rows for which the bound is too coarse."""

    squared: Float64[Tensor, " n"]
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
    lengths = inputs.diagonal(dim1=1, dim2=2) * outputs.diagonal(dim1=1, dim2=2)
    lengths = lengths.clamp_min(0.0).sqrt().sum(1).double()
    squared = torch.linalg.vecdot(inputs.flatten(1), outputs.flatten(1)).double()
    bound = unit(inputs.dtype, max(longest, inputs.shape[1])) * lengths.square()
    careful = (bound > OVERCLIP * squared) | ~squared.isfinite() | (squared < 1e-24)
    return GramNorms(squared.clamp_min(0.0) + bound, careful)


def unit(dtype: torch.dtype, longest: int) -> float:
    """u of the bound: a few ulps, growing like the square root of the longest sum."""
    return float(torch.finfo(dtype).eps) * (4.0 + math.sqrt(longest))

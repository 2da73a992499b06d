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
from quietgrad.kernels.gram_rows import gram_rows, served
from quietgrad.kernels.library import in_use

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


def factor_norms(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> GramNorms:
    """From the factors: by the C kernel where it serves, which computes half of each Gram matrix and keeps none."""
    longest, library = max(a.shape[2], b.shape[2]), in_use()
    if library is None or not served(a, b):
        return gram_norms(torch.bmm(a, a.transpose(1, 2)), torch.bmm(b, b.transpose(1, 2)), longest=longest)
    squared, roots = gram_rows(library, a, b, lost=LOST * max(longest, a.shape[1]))
    return _bounded(squared, roots, a.dtype, positions=a.shape[1], longest=longest)


def gram_norms(inputs: Float[Tensor, "n t t"], outputs: Float[Tensor, "n t t"], *, longest: int) -> GramNorms:
    """From the Gram matrices of the factors.

    Args:
        longest: the longest inner product inside the Gram matrices, for the bound.
    """
    positions = inputs.shape[1]
    squared = torch.linalg.vecdot(inputs, outputs).double().sum(1)
    lost = LOST * max(longest, positions)
    a, b = (
        (each.diagonal(dim1=1, dim2=2).double().clamp_min(0.0) + lost).sqrt() for each in (inputs, outputs)
    )
    roots = torch.stack([(a * b).sum(1), a.sum(1), b.sum(1)], 1)
    return _bounded(squared, roots, inputs.dtype, positions=positions, longest=longest)


def _bounded(
    squared: Float64[Tensor, " n"],
    roots: Float64[Tensor, "n 3"],
    dtype: torch.dtype,
    *,
    positions: int,
    longest: int,
) -> GramNorms:
    """With the rounding bound added.

    Args:
        roots: the sums over t of ‖a_t‖‖b_t‖, ‖a_t‖ and ‖b_t‖, with what may be lost of each.
    """
    lengths, a, b = roots.unbind(1)
    terms = max(longest, positions)
    rounded = unit(dtype, terms) * lengths.square()
    flushed = LOST * terms * (a.square() + b.square() + positions)
    bound = rounded + flushed
    careful = ~(bound <= OVERCLIP * squared)  # also where a norm is not a number
    return GramNorms(squared.clamp_min(0.0) + bound, lengths, careful)


def unit(dtype: torch.dtype, longest: int) -> float:
    """u of the bound: a few ulps, growing like the square root of the longest sum."""
    return float(torch.finfo(dtype).eps) * (4.0 + math.sqrt(longest))

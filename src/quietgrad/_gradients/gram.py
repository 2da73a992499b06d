"""Norms without gradients: ‖Σ_t b_t a_tᵀ‖² = Σ_ts (a_t·a_s)(b_t·b_s), never below the truth.

A float32 Gram norm falls below the true one when tokens cancel. Its error is at most γ·(Σ_t ‖a_t‖‖b_t‖)², so that
much is added. γ counts the roundings of all inner products, as if every one went the same way: there are records for
which they do (`tests/attacks/test_conspiring_rows.py`). Long inner products (a vocabulary's) are added up in float64, a
part at a time: else the bound would be too coarse for every record. What float32 loses of products too small for it is
added too: at most `LOST` each, in the Gram matrices and in the product of the two.

The caller must form a row instead where this would over-clip by more than 1%, or where its positions cancel so much
that a sum of products would round it coarsely (`row_arithmetic.longest`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad._gradients.row_arithmetic import LOST, longest, slack
from quietgrad._kernels.gram_rows import gram_rows, roundings, served
from quietgrad._kernels.library import in_use

OVERCLIP = 0.02
"""A bound above this part of ‖G‖² over-clips by 1%."""

DEPTH = 2048
"""Terms of an inner product that torch adds up in float32, in whatever order."""


@dataclass(frozen=True)
class GramNorms:
    """Squared norms with their rounding bound added, and the rows for which the bound is too coarse.

    Args:
        lengths: Σ_t ‖a_t‖‖b_t‖, what all positions add up to at most.
        cancels: whether there is any such row.
    """

    squared: Float64[Tensor, " n"]
    lengths: Float64[Tensor, " n"]
    careful: Bool[Tensor, " n"]
    cancels: bool

    def with_formed(
        self, norms_of: Callable[[Bool[Tensor, " n"]], Float64[Tensor, " k"]]
    ) -> Float64[Tensor, " n"]:
        """The norms, those of the careful rows replaced by `norms_of(careful)`."""
        if not self.cancels:
            return self.squared
        norms = self.squared.clone()
        norms[self.careful] = norms_of(self.careful)
        return norms


def factor_norms(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> GramNorms:
    """From the factors: by the C kernel where it serves, which computes half of each Gram matrix and keeps none."""
    inner, library = a.shape[2] + b.shape[2], in_use()
    if library is None or not served(a, b):
        return gram_norms(_gram(a), _gram(b), inner=inner, terms=_terms(a) + _terms(b), dtype=a.dtype)
    squared, roots = gram_rows(library, a, b, lost=LOST * max(inner, a.shape[1]))
    terms = roundings(a.shape[2]) + roundings(b.shape[2])
    return _bounded(squared, roots, a.dtype, positions=a.shape[1], inner=inner, terms=terms)


def _gram(x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t t"]:
    """x xᵀ of every sample; DEPTH features at a time, added up in float64, where there are more."""
    if x.shape[2] <= DEPTH or x.dtype == torch.float64:
        return torch.bmm(x, x.transpose(1, 2))
    total = x.new_zeros(len(x), x.shape[1], x.shape[1], dtype=torch.float64)
    for part in x.split(DEPTH, 2):
        total += torch.bmm(part, part.transpose(1, 2))
    return total


def _terms(x: Float[Tensor, "n t d"]) -> int:
    return min(x.shape[2], DEPTH) if x.dtype != torch.float64 else x.shape[2]


def gram_norms(
    inputs: Float[Tensor, "n t t"],
    outputs: Float[Tensor, "n t t"],
    *,
    inner: int,
    terms: int,
    dtype: torch.dtype,
) -> GramNorms:
    """From the Gram matrices of the factors.

    Args:
        inner: numbers in an inner product of inputs and in one of outputs, together.
        terms: how many of these were added up in `dtype`.
    """
    positions = inputs.shape[1]
    wide = torch.promote_types(inputs.dtype, outputs.dtype)
    squared = torch.linalg.vecdot(inputs.to(wide), outputs.to(wide)).double().sum(1)
    lost = LOST * max(inner, positions)
    a, b = (
        (each.diagonal(dim1=1, dim2=2).double().clamp_min(0.0) + lost).sqrt() for each in (inputs, outputs)
    )
    roots = torch.stack([(a * b).sum(1), a.sum(1), b.sum(1)], 1)
    return _bounded(squared, roots, dtype, positions=positions, inner=inner, terms=terms + positions)


def _bounded(
    squared: Float64[Tensor, " n"],
    roots: Float64[Tensor, "n 3"],
    dtype: torch.dtype,
    *,
    positions: int,
    inner: int,
    terms: int,
) -> GramNorms:
    """With the rounding bound added.

    Args:
        terms: roundings in `dtype` of one of the products that are added up.
        roots: the sums over t of ‖a_t‖‖b_t‖, ‖a_t‖ and ‖b_t‖, with what may be lost of each.
    """
    # In numpy: these are few numbers of many layers, and torch would take most of its time to begin.
    norms, sums = squared.cpu().numpy(), roots.cpu().numpy()
    with np.errstate(all="ignore"):
        squares = sums * sums
        flushed = LOST * max(inner, positions)
        bound = slack(dtype, terms) * squares[:, 0] + flushed * (squares[:, 1] + squares[:, 2] + positions)
        within = (bound <= OVERCLIP * norms) & (squares[:, 0] <= longest(positions) ** 2 * norms)
        found = np.maximum(norms, 0.0) + bound, sums[:, 0], ~within  # also where a norm is not a number
    bounded, lengths, careful = (torch.from_numpy(each).to(squared.device) for each in found)
    return GramNorms(bounded, lengths, careful, cancels=not within.all())

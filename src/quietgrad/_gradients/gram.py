"""Norms without gradients: ‖Σ_t b_t a_tᵀ‖² = Σ_ts (a_t·a_s)(b_t·b_s), never below the truth.

A float32 Gram norm falls below the true one when tokens cancel. Its error is at most γ·(Σ_t ‖a_t‖‖b_t‖)², so that
much is added. γ counts the roundings of all inner products, as if every one went down: there are records for which
they do. Each implementation of `gram_sums` counts its own roundings, and the bound is that of the one which ran.

Long inner products, as a vocabulary's, are added up in float64, a part at a time: else the bound would be too coarse
for every record. What float32 loses of products too small for it is added too: at most `LOST` each, in the Gram
matrices and in the product of the two.

The caller must form a row instead where this would over-clip by more than 1%, or where its positions cancel so much
that a sum of products would round it coarsely (`rounding.longest`).

Checked by: tests/kernels/test_gram_rows.py, tests/attacks/test_conspiring_rows.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad._kernels.gram_rows import GramSums
from quietgrad._kernels.registry import operation
from quietgrad._kernels.rounding import LOST, longest, slack

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
        """Return the norms, those of the careful rows replaced by `norms_of(careful)`."""
        if not self.cancels:
            return self.squared
        norms = self.squared.clone()
        norms[self.careful] = norms_of(self.careful)
        return norms


def factor_norms(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> GramNorms:
    """Compute the norms from the factors."""
    inner, positions = a.shape[2] + b.shape[2], a.shape[1]
    sums = gram_sums(a, b, LOST * max(inner, positions))
    return _bound_rounding(sums, a.dtype, positions=positions, inner=inner)


@operation()
def gram_sums(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"], lost: float) -> GramSums:
    """Compute what Gram norms need, and count the roundings in it.

    Args:
        lost: is added to each ‖a_t‖² and ‖b_t‖²: what products too small for float32 may add up to.

    Checked by: tests/kernels/test_gram_rows.py, tests/attacks/test_conspiring_rows.py
    """
    return _sums_of(_gram(a), _gram(b), lost, _terms(a) + _terms(b) + a.shape[1])


def _gram(x: Float[Tensor, "n t d"]) -> Float[Tensor, "n t t"]:
    """Compute x xᵀ of every sample; DEPTH features at a time, added up in float64, where there are more."""
    if x.shape[2] <= DEPTH or x.dtype == torch.float64:
        return torch.bmm(x, x.transpose(1, 2))
    # A float32 sum of d terms may be off by d·u. With a vocabulary of 50,000 that is 0.3% of the norm of each
    # position; in parts of DEPTH terms it is 0.01%, however many parts there are.
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
    """Compute the norms from the Gram matrices of the factors.

    Args:
        inner: numbers in an inner product of inputs and in one of outputs, together.
        terms: how many of these were added up in `dtype`.
    """
    positions = inputs.shape[1]
    sums = _sums_of(inputs, outputs, LOST * max(inner, positions), terms + positions)
    return _bound_rounding(sums, dtype, positions=positions, inner=inner)


def _sums_of(
    inputs: Float[Tensor, "n t t"], outputs: Float[Tensor, "n t t"], lost: float, roundings: int
) -> GramSums:
    wide = torch.promote_types(inputs.dtype, outputs.dtype)
    # Only the positions' lengths are kept beside the norm: by Cauchy and Schwarz they bound how far rounding can go.
    squared = torch.linalg.vecdot(inputs.to(wide), outputs.to(wide)).double().sum(1)
    a, b = (
        (each.diagonal(dim1=1, dim2=2).double().clamp_min(0.0) + lost).sqrt() for each in (inputs, outputs)
    )
    return GramSums(squared, torch.stack([(a * b).sum(1), a.sum(1), b.sum(1)], 1), roundings)


def _bound_rounding(found: GramSums, dtype: torch.dtype, *, positions: int, inner: int) -> GramNorms:
    """Add the rounding bound of the implementation that computed these sums."""
    if found.squared.device.type != "cpu":
        return _bound_on_device(found, dtype, positions=positions, inner=inner)
    # In numpy: these are few numbers of many layers, and torch would take most of its time to begin.
    norms, sums = found.squared.cpu().numpy(), found.roots.cpu().numpy()
    with np.errstate(all="ignore"):
        squares = sums * sums
        # Two kinds of error are bounded. Relative rounding is in proportion to (Σ_t ‖a_t‖‖b_t‖)², as each entry of a
        # Gram matrix is at most the product of two lengths. Products that underflow are lost absolutely: at most LOST
        # for each term.
        flushed = LOST * max(inner, positions)
        bound = slack(dtype, found.roundings) * squares[:, 0] + flushed * (
            squares[:, 1] + squares[:, 2] + positions
        )
        # Two conditions. The first keeps the norm tight: a bound far above the truth would clip the sample for no
        # reason. The second keeps the sum tight, since it adds the same positions in float32 (`rounding.longest`).
        within = (bound <= OVERCLIP * norms) & (squares[:, 0] <= longest(positions) ** 2 * norms)
        parts = np.maximum(norms, 0.0) + bound, sums[:, 0], ~within  # also where a norm is not a number
    bounded, lengths, careful = (torch.from_numpy(each).to(found.squared.device) for each in parts)
    return GramNorms(bounded, lengths, careful, cancels=not within.all())


def _bound_on_device(found: GramSums, dtype: torch.dtype, *, positions: int, inner: int) -> GramNorms:
    """The same bound, without asking which rows need care: those are given a norm that is large enough instead.

    A norm of at least Σ_t ‖a_t‖‖b_t‖/κ bounds the weight so that a run of products stays within its margin
    (`rounding.longest`). Rows whose positions cancel are clipped a little more than on the CPU, where they are formed.
    """
    squares = found.roots.square()
    flushed = LOST * max(inner, positions)
    bound = slack(dtype, found.roundings) * squares[:, 0] + flushed * (
        squares[:, 1] + squares[:, 2] + positions
    )
    norms = torch.maximum(found.squared.clamp_min(0.0) + bound, squares[:, 0] / longest(positions) ** 2)
    nobody = torch.zeros_like(norms, dtype=torch.bool)
    return GramNorms(norms, found.roots[:, 0], nobody, cancels=False)

"""Orthonormal rows of a wide matrix, fast: small Gram matrices and matrix products, never column by column."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.row_arithmetic import inner_products

RELATIVE_RANK = 1e-5
"""A direction with less than this part of the largest length is rounding, not data (float32)."""

TOLERANCE = 1e-5
"""Largest accepted ‖BBᵀ − I‖ as the Gram matrix shows it."""

_RESOLVED = 1e-5
"""Eigenvalues of a float32 Gram matrix below this part of the largest are mixed up with its rounding."""

_ROUNDS = 4

PROBES, SURELY = 8, 32.0
"""‖E‖ ≤ SURELY·√(2/π)·max_j ‖E z_j‖ for PROBES Gaussian vectors z_j, but for one time in SURELY^PROBES = 10¹²
(Halko, Martinsson and Tropp 2011, Lemma 4.1)."""

WIDENED = 1024
"""Columns that are converted to float64 at a time: they stay in the cache."""


def orthonormal_rows(rows: Float[Tensor, "k p"]) -> tuple[Float[Tensor, "r p"], float]:
    """An orthonormal basis B of the span of the rows, r ≤ k their numerical rank, and a bound of ‖BBᵀ − I‖.

    Rotates the rows to their principal axes by the k×k Gram matrix, drops those that are rounding, and whitens until
    the result *measures* as orthonormal (a Cholesky-QR returns garbage without an exception where the Gram matrix is
    ill-conditioned). Where float32 cannot resolve the Gram matrix, float64 is the fallback.
    """
    basis = _principal_axes(rows)
    for _ in range(_ROUNDS):
        gram = _gram(basis)
        error = _distance_from_identity(gram)
        if error <= TOLERANCE / 4:
            break
        values, vectors = torch.linalg.eigh(gram)
        basis = (vectors * values.rsqrt() @ vectors.T).to(basis.dtype) @ basis
    assert error <= TOLERANCE, f"the basis is not orthonormal: {error}"
    return basis, orthonormality_bound(basis)


def orthonormality_bound(basis: Float[Tensor, "k p"]) -> float:
    """An upper bound of ‖BBᵀ − I‖, the spectral norm, that fails once in 10¹² bases.

    A Gram matrix of float32 products cannot tell: at worst the roundings of its k² entries add up to k·10⁻⁵. So
    E = BBᵀ − I is applied to random vectors in float64. They are the same for every basis, and none is made from them.
    """
    if not len(basis):
        return 0.0
    probes = torch.randn(
        PROBES, len(basis), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(basis.device)
    applied = -probes
    for columns in basis.split(WIDENED, 1):
        wide = columns.double()
        applied += probes @ wide @ wide.T
    return SURELY * math.sqrt(2 / math.pi) * float(applied.norm(dim=1).amax())


def _principal_axes(rows: Float[Tensor, "k p"]) -> Float[Tensor, "r p"]:
    """The rows rotated onto their principal axes, each of about length 1; axes that are rounding are left out."""
    largest = float(rows.abs().amax()) if rows.numel() else 0.0
    if not largest > 0:
        return rows[:0]
    if not 1e-6 < largest < 1e6:
        rows = rows / largest  # squares of tiny gradients would underflow
    values, vectors = torch.linalg.eigh(_gram(rows))
    if values[0] < _RESOLVED * values[-1]:
        values, vectors = torch.linalg.eigh(_gram(rows.double()))
    kept = values.flip(0) > RELATIVE_RANK**2 * values[-1]
    turn = (vectors.flip(1)[:, kept] * values.flip(0)[kept].rsqrt()).T
    axes: Tensor = turn.to(rows.dtype) @ rows
    return axes


def _gram(rows: Float[Tensor, "k p"]) -> Float64[Tensor, "k k"]:
    return inner_products(rows, rows)


def _distance_from_identity(gram: Float64[Tensor, "k k"]) -> float:
    if not len(gram):
        return 0.0
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float(torch.linalg.eigvalsh(gram - identity).abs().amax())

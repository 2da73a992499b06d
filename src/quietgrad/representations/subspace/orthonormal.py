"""Orthonormal rows of a wide matrix, fast: small Gram matrices and matrix products, never column by column."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

RELATIVE_RANK = 1e-5
"""A direction with less than this part of the largest length is rounding, not data (float32)."""

TOLERANCE = 1e-5
"""Largest accepted ‖BBᵀ − I‖; what is left enters the residual's norm bound as it was measured."""

_RESOLVED = 1e-5
"""Eigenvalues of a float32 Gram matrix below this part of the largest are mixed up with its rounding."""

_ROUNDS = 4


def orthonormal_rows(rows: Float[Tensor, "k p"]) -> tuple[Float[Tensor, "r p"], float]:
    """An orthonormal basis B of the span of the rows, r ≤ k their numerical rank, and ‖BBᵀ − I‖ as measured.

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
    return basis, error


def orthonormality_error(basis: Float[Tensor, "k p"]) -> float:
    """‖BBᵀ − I‖, the spectral norm."""
    return _distance_from_identity(_gram(basis))


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
    return (rows @ rows.T).double()


def _distance_from_identity(gram: Float64[Tensor, "k k"]) -> float:
    if not len(gram):
        return 0.0
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float(torch.linalg.eigvalsh(gram - identity).abs().amax())

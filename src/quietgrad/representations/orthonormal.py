"""Orthonormal rows of a wide matrix, fast: small Gram matrices and matrix products, never column by column."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

RELATIVE_RANK = 1e-5
"""A direction with less than this part of the largest length is rounding, not data (float32)."""

TOLERANCE = 1e-5
"""Largest accepted ‖BBᵀ − I‖; what is left enters the residual's norm bound as it was measured."""

_ROUNDS = 4


def orthonormal_rows(rows: Float[Tensor, "k p"]) -> Float[Tensor, "r p"]:
    """An orthonormal basis of the span of the rows, strongest direction first; r ≤ k is their numerical rank.

    Rotates the rows to their principal axes by the k×k Gram matrix, drops those that are rounding, and whitens until
    the result *measures* as orthonormal (Cholesky-QR would return garbage without an exception where the Gram matrix
    is ill-conditioned). Householder QR in float64 is the fallback.
    """
    basis = _principal_axes(rows)
    for _ in range(_ROUNDS):
        gram = _gram(basis)
        if _distance_from_identity(gram) <= TOLERANCE / 4:
            return basis
        values, vectors = torch.linalg.eigh(gram)
        if len(values) and values[0] < 1e-5 * values[-1]:
            break
        basis = (vectors * values.rsqrt() @ vectors.T).to(basis.dtype) @ basis
    return basis if orthonormality_error(basis) <= TOLERANCE else _householder(basis)


def orthonormality_error(basis: Float[Tensor, "k p"]) -> float:
    """‖BBᵀ − I‖, the spectral norm."""
    return _distance_from_identity(_gram(basis))


def _principal_axes(rows: Float[Tensor, "k p"]) -> Float[Tensor, "r p"]:
    """The rows rotated onto their principal axes, each of length 1; numerically zero ones are left out."""
    largest = rows.abs().amax() if rows.numel() else rows.new_zeros(())
    if not bool(largest > 0):
        return rows[:0]
    rows = rows / largest  # squares of tiny gradients would underflow
    _, vectors = torch.linalg.eigh(_gram(rows))
    rotated = vectors.flip(1).T.to(rows.dtype) @ rows
    # The rotated rows' own lengths, not the eigenvalues: those are wrong below 1e-7 of the largest.
    lengths = torch.linalg.vector_norm(rotated, dim=1)
    kept = lengths > RELATIVE_RANK * lengths.amax()
    axes: Tensor = rotated[kept] / lengths[kept, None]
    return axes


def _gram(rows: Float[Tensor, "k p"]) -> Float64[Tensor, "k k"]:
    return (rows @ rows.T).double()


def _distance_from_identity(gram: Float64[Tensor, "k k"]) -> float:
    if not len(gram):
        return 0.0
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float(torch.linalg.eigvalsh(gram - identity).abs().amax())


def _householder(rows: Float[Tensor, "k p"]) -> Float[Tensor, "k p"]:
    columns: Tensor = torch.linalg.qr(rows.T.double()).Q
    return columns.T.to(rows.dtype).contiguous()

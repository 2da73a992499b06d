"""Orthonormal rows, fast: by small Gram matrices and matrix products, never column by column.

On the CPU the rows are measured and turned until they are orthonormal. On a device every question makes the host wait:
there one download serves all groups, and a fixed number of steps without questions does the rest.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.row_arithmetic import inner_products
from quietgrad._kernels.transfer import upload

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
"""Columns that are converted to float64 at a time: they stay in the cache. Devices take 64 times as many."""

Bounded = tuple[Tensor, float | Tensor]
"""An orthonormal basis B `[r, p]`, and what ‖BBᵀ − I‖ is at most; a tensor where reading it would mean to wait."""


class NotFiniteError(ValueError):
    """Some of the rows are NaN or infinite."""

    def __init__(self) -> None:
        super().__init__("Public gradients are NaN or infinite. Check public_losses.")


def orthonormal_groups(groups: dict[str, Float[Tensor, "k p"]]) -> dict[str, Bounded]:
    """Make the rows of each group orthonormal. Groups are given up one by one: they are as large as the bases.

    Raises:
        NotFiniteError: on a device, where nobody could ask earlier whether public gradients are finite.
    """
    if all(rows.device.type == "cpu" for rows in groups.values()):
        return {name: orthonormal_rows(groups.pop(name)) for name in list(groups)}
    return _on_device(groups)


def orthonormal_rows(rows: Float[Tensor, "k p"]) -> Bounded:
    """Return a basis B of the span of the rows, of r ≤ k rows, their numerical rank.

    Rotates the rows to their principal axes by the k×k Gram matrix, drops those that are rounding, and whitens until
    the result *measures* as orthonormal (a Cholesky-QR returns garbage without an exception where the Gram matrix is
    ill-conditioned). Where float32 cannot resolve the Gram matrix, float64 is the fallback.
    """
    if rows.device.type != "cpu":
        return _on_device({"": rows})[""]
    basis = _principal_axes(rows)
    for _ in range(_ROUNDS):
        gram = inner_products(basis, basis)
        error = _distance_from_identity(gram)
        if error <= TOLERANCE / 4:
            break
        values, vectors = torch.linalg.eigh(gram)
        basis = (vectors * values.rsqrt() @ vectors.T).to(basis.dtype) @ basis
    assert error <= TOLERANCE, f"the basis is not orthonormal: {error}"
    return basis, orthonormality_bound(basis)


def orthonormality_bound(basis: Float[Tensor, "k p"]) -> float | Float64[Tensor, ""]:
    """An upper bound of ‖BBᵀ − I‖, the spectral norm, that fails once in 10¹² bases; not read from a device.

    A Gram matrix of float32 products cannot tell: at worst the roundings of its k² entries add up to k·10⁻⁵. So
    E = BBᵀ − I is applied to random vectors in float64. They are the same for every basis, and none is made from them.
    """
    generator = torch.Generator().manual_seed(0)
    probes = upload(torch.randn(PROBES, len(basis), generator=generator, dtype=torch.float64), basis.device)
    applied = -probes
    for columns in basis.split(_widened(basis), 1):
        wide = columns.double()
        applied += probes @ wide @ wide.T
    largest: Tensor = torch.linalg.vector_norm(applied, dim=1).amax()
    bound = SURELY * math.sqrt(2 / math.pi) * largest
    return float(bound) if basis.device.type == "cpu" else bound


def _widened(rows: Tensor) -> int:
    return WIDENED if rows.device.type == "cpu" else WIDENED << 6


def _principal_axes(rows: Float[Tensor, "k p"]) -> Float[Tensor, "r p"]:
    """The rows rotated onto their principal axes, each of about length 1; axes that are rounding are left out."""
    largest = float(rows.abs().amax()) if rows.numel() else 0.0
    if not largest > 0:
        return rows[:0]
    if not 1e-6 < largest < 1e6:
        rows = rows / largest  # squares of tiny gradients would underflow
    gram = inner_products(rows, rows)
    if not gram.diagonal().amax() > 0:
        return rows[:0]
    values, vectors = torch.linalg.eigh(gram)
    if values[0] < _RESOLVED * values[-1]:
        values, vectors = torch.linalg.eigh(inner_products(rows.double(), rows.double()))
    return _turn_of(values, vectors).to(rows.dtype) @ rows


def _turn_of(values: Float64[Tensor, " k"], vectors: Float64[Tensor, "k k"]) -> Float64[Tensor, "r k"]:
    """What rotates rows onto those principal axes that are not rounding, given their Gram matrix."""
    kept = values.flip(0) > RELATIVE_RANK**2 * values[-1].clamp_min(0.0)
    turn: Tensor = (vectors.flip(1)[:, kept] * values.flip(0)[kept].rsqrt()).T
    return turn


def _distance_from_identity(gram: Float64[Tensor, "k k"]) -> float:
    if not len(gram):
        return 0.0
    identity = torch.eye(len(gram), dtype=gram.dtype)
    return float(torch.linalg.eigvalsh(gram - identity).abs().amax())


# ---- on a device ---------------------------------------------------------------------------------------------


def _on_device(groups: dict[str, Float[Tensor, "k p"]]) -> dict[str, Bounded]:
    """The same for rows on a device. The host waits once, for the Gram matrices of all groups."""
    for name, rows in groups.items():
        # By a power of two, which rounds nothing: squares of tiny gradients would underflow.
        largest = rows.abs().amax() if rows.numel() else rows.new_zeros(())
        groups[name] = torch.ldexp(rows, -torch.frexp(largest).exponent)
    turns = _turns({name: _wide_gram(rows) for name, rows in groups.items()})
    bases = dict[str, Bounded]()
    for name in list(groups):
        rows = groups.pop(name)
        basis = upload(turns[name].to(rows.dtype), rows.device) @ rows
        del rows
        basis = _polished(basis)
        bases[name] = basis, orthonormality_bound(basis)
    return bases


def _turns(grams: dict[str, Float64[Tensor, "k k"]]) -> dict[str, Float64[Tensor, "r k"]]:
    """What rotates each group's rows onto their principal axes, computed on the CPU, as LAPACK is as fast there."""
    downloaded = torch.cat([gram.flatten() for gram in grams.values()]).cpu()
    if not bool(downloaded.isfinite().all()):
        raise NotFiniteError
    parts = downloaded.split([gram.numel() for gram in grams.values()])
    return {
        name: _turn_of(*torch.linalg.eigh(part.view(gram.shape)))
        for (name, gram), part in zip(grams.items(), parts, strict=True)
    }


def _polished(basis: Float[Tensor, "r p"]) -> Float[Tensor, "r p"]:
    """Newton's iteration B ← B + ½(I − BBᵀ)B, which squares the error in each round and asks nothing."""
    if not basis.numel():
        return basis
    identity = torch.eye(len(basis), dtype=torch.float64, device=basis.device)
    for _ in range(_ROUNDS):
        basis = basis + ((identity - inner_products(basis, basis)) / 2).to(basis.dtype) @ basis
    return basis


def _wide_gram(rows: Float[Tensor, "k p"]) -> Float64[Tensor, "k k"]:
    """The Gram matrix in float64: eigenvalues down to RELATIVE_RANK² of the largest are to be told from rounding."""
    gram = rows.new_zeros(len(rows), len(rows), dtype=torch.float64)
    for columns in rows.split(_widened(rows), 1):
        wide = columns.double()
        gram += wide @ wide.T
    return gram

"""An orthonormal, block-diagonal basis B of a subspace of the parameters, and the maps along it.

Rows are made orthonormal fast: by small Gram matrices and matrix products, never column by column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import Blocks, split_blocks
from quietgrad._gradients.row_arithmetic import as_rows, inner_products
from quietgrad._gradients.space import Shapes
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad._kernels.transfer import upload
from quietgrad._representations.subspace.projections import in_short_runs, project, projects_unformed

# ---- orthonormal rows ----------------------------------------------------------------------------------------

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
        gram, bound = _gram_with_bound(basis)
        error = _distance_from_identity(gram)
        if error <= TOLERANCE / 4:
            break
        values, vectors = torch.linalg.eigh(gram)
        basis = upload((vectors * values.rsqrt() @ vectors.T).to(basis.dtype), basis.device) @ basis
    assert error <= TOLERANCE, f"the basis is not orthonormal: {error}"
    return basis, orthonormality_bound(basis) if bound is None else bound


def orthonormality_bound(basis: Float[Tensor, "k p"]) -> float:
    """An upper bound of ‖BBᵀ − I‖, the spectral norm, that fails once in 10¹² bases.

    A Gram matrix of float32 products cannot tell: at worst the roundings of its k² entries add up to k·10⁻⁵. So
    E = BBᵀ − I is applied to random vectors in float64. They are the same for every basis, and none is made from them.
    """
    return float(_bound_of(_apply_error(basis))) if len(basis) else 0.0


def _apply_error(basis: Float[Tensor, "k p"]) -> Float64[Tensor, "probes k"]:
    generator = torch.Generator().manual_seed(0)
    probes = upload(torch.randn(PROBES, len(basis), generator=generator, dtype=torch.float64), basis.device)
    applied = -probes
    for columns in basis.split(WIDENED, 1):
        wide = columns.double()
        applied += probes @ wide @ wide.T
    return applied


def _bound_of(applied: Float64[Tensor, "probes k"]) -> Float64[Tensor, ""]:
    largest: Tensor = torch.linalg.vector_norm(applied, dim=1).amax()
    return SURELY * math.sqrt(2 / math.pi) * largest


def _gram_with_bound(basis: Float[Tensor, "k p"]) -> tuple[Float64[Tensor, "k k"], float | None]:
    """Return the Gram matrix, and from devices the bound too: one download for both."""
    if basis.device.type == "cpu" or not len(basis):
        return _gram(basis), None
    gram = inner_products(basis, basis)
    both = torch.cat([gram.flatten(), _bound_of(_apply_error(basis)).view(1)]).cpu()
    return both[:-1].view(gram.shape), float(both[-1])


def _principal_axes(rows: Float[Tensor, "k p"]) -> Float[Tensor, "r p"]:
    """The rows rotated onto their principal axes, each of about length 1; axes that are rounding are left out."""
    if not rows.numel():
        return rows[:0]
    if rows.device.type == "cpu":
        largest = float(rows.abs().amax())
        if not largest > 0:
            return rows[:0]
        if not 1e-6 < largest < 1e6:
            rows = rows / largest  # squares of tiny gradients would underflow
    else:
        # Always, since the host would wait for the answer; by a power of two, which rounds nothing.
        _, exponent = torch.frexp(rows.abs().amax())
        rows = torch.ldexp(rows, -exponent)
    gram = _gram(rows)
    if not gram.diagonal().amax() > 0:
        return rows[:0]
    values, vectors = torch.linalg.eigh(gram)
    if values[0] < _RESOLVED * values[-1]:
        values, vectors = torch.linalg.eigh(_gram(rows.double()))
    kept = values.flip(0) > RELATIVE_RANK**2 * values[-1]
    turn = (vectors.flip(1)[:, kept] * values.flip(0)[kept].rsqrt()).T
    axes: Tensor = upload(turn.to(rows.dtype), rows.device) @ rows
    return axes


def _gram(rows: Float[Tensor, "k p"]) -> Float64[Tensor, "k k"]:
    # On the CPU, as all that is asked of so small a matrix: one download instead of a wait for each question.
    return inner_products(rows, rows).cpu()


def _distance_from_identity(gram: Float64[Tensor, "k k"]) -> float:
    if not len(gram):
        return 0.0
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return float(torch.linalg.eigvalsh(gram - identity).abs().amax())


# ---- maps along a basis --------------------------------------------------------------------------------------

FORMED_BYTES = 2**28
"""Rows of one micro-batch are formed once for all that is asked of them, if they fit into this."""

Coordinates = dict[str, Tensor]
"""Group → coordinates along its basis vectors, `[k_g]` or `[n, k_g]`."""


class GroupBasis:
    """B of one group: k orthonormal rows over the group's blocks, side by side.

    Args:
        rows: `[k, p]`.
        error: what ‖BBᵀ − I‖ is at most.
        shapes: the group's blocks in the order of the columns.
    """

    def __init__(self, rows: Float[Tensor, "k p"], error: float, shapes: Shapes) -> None:
        self.rows, self.error, self.shapes = rows, error, shapes
        self._columns = split_blocks(rows, shapes)

    def project(self, grads: BlockwiseGrads) -> Float[Tensor, "n k"]:
        """G Bᵀ, as accurate as `row_arithmetic.inner_products`."""
        total = self.rows.new_zeros(grads.samples, len(self.rows), dtype=torch.float64)
        for name in self.shapes if total.numel() else ():
            total += project(grads.blocks[name], self._columns[name])
        return total.to(torch.promote_types(self.rows.dtype, torch.float32))

    def coordinates(self, blocks: Mapping[str, Tensor]) -> Float[Tensor, " k"]:
        """B v for one vector v."""
        total = self.rows.new_zeros(len(self.rows))
        for name, columns in self._columns.items():
            total += as_rows(columns) @ blocks[name].flatten().to(columns.dtype)
        return total

    def expand(self, coordinates: Float[Tensor, "*n k"]) -> Blocks:
        """coordinates · B, as blocks."""
        return split_blocks(coordinates.to(self.rows.dtype) @ self.rows, self.shapes)

    def expand_widely(self, coordinates: Float64[Tensor, " k"]) -> Blocks:
        """coordinates · B in float64, as blocks: for what cancels afterwards."""
        parts = [columns.double().T @ coordinates for columns in self.rows.split(WIDENED, 1)]
        return split_blocks(torch.cat(parts), self.shapes)


@dataclass(frozen=True)
class Basis:
    """Block-diagonal B: one orthonormal basis a group, of no rows where the public gradients vanish."""

    groups: dict[str, GroupBasis]

    @property
    def error(self) -> float:
        """What ‖BBᵀ − I‖ is at most."""
        return max((group.error for group in self.groups.values()), default=0.0)

    def project(self, grads: BlockwiseGrads) -> Coordinates:
        """The embedding of every sample, per group."""
        return {name: group.project(grads) for name, group in self.groups.items()}

    def coordinates(self, blocks: Mapping[str, Tensor]) -> Coordinates:
        """The embedding of one vector, per group."""
        return {name: group.coordinates(blocks) for name, group in self.groups.items()}

    def expand(self, coordinates: Mapping[str, Tensor]) -> Blocks:
        """Back to parameter space: Bᵀ·coordinates."""
        blocks: Blocks = {}
        for name, group in self.groups.items():
            blocks.update(group.expand(coordinates[name]))
        return blocks

    def expand_widely(self, coordinates: Mapping[str, Tensor]) -> Blocks:
        """The same in float64, of one vector's coordinates."""
        blocks: Blocks = {}
        for name, group in self.groups.items():
            blocks.update(group.expand_widely(coordinates[name]))
        return blocks


def projectable(grads: PerSampleGrads) -> BlockwiseGrads:
    """The same gradients, formed where each of projection, norm and sum would otherwise form them anew.

    Single outer products (t = 1) and embeddings are never formed: their projections and norms are exact without. Sums
    are taken in short runs: of a gradient much longer than its residual, the residual's bound allows less rounding.
    """
    blocks = grads.blocks
    loose = {name: block for name, block in blocks.items() if not projects_unformed(block)}
    size = sum(block.shape.numel() for block in loose.values())
    if grads.samples * size * 4 <= FORMED_BYTES:
        blocks = {**blocks, **{name: block.form() for name, block in loose.items()}}
    return BlockwiseGrads({name: in_short_runs(block) for name, block in blocks.items()}, grads.samples)

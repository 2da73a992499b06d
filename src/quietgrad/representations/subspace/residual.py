"""What the subspace misses of each gradient: GEP's second release, without ever forming a residual matrix.

For an orthonormal B,  Σ c_i r_i = Σ c_i g_i − Bᵀ Σ c_i w_i  and  ‖r_i‖² = ‖g_i‖² − ‖w_i‖².

Formal guarantee: that difference of squares cancels (a float32 basis let a residual clipped at 2 reach norm 100), so

* each gradient is first scaled down to LARGEST·S, which bounds what may cancel in the sum,
* the clip sees an upper bound of the residual's norm, max(‖g‖² − ‖w‖², 0) + slack·‖g‖², of norms that are not below
  and not above the truth; the slack covers the rounding of w and ‖BBᵀ − I‖ (four times what float32 measured at this
  refresh),
* the two sums are taken apart RUN rows at a time and added up in float64, so that what rounding leaves of the other
  samples' cancelling parts does not grow with the batch,
* and the bound is raised by ROUNDING for that: RUN rows of norm LARGEST·S.

Sensitivity is then S at any scale of the gradients, inside span(B) too. One step is a model and no proof: the roundings
of the expansion Bᵀw, k terms each, are taken for independent. Nobody chooses B's numbers, which are public but random.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.base import zero_rows
from quietgrad.gradients.blocks import Blocks, Space
from quietgrad.gradients.norms import EXCESS, row_squared_norms
from quietgrad.gradients.stages import PerSampleGrads, Released
from quietgrad.gradients.sums import RUN
from quietgrad.representations.base import Codec, Representation, State
from quietgrad.representations.public import Public
from quietgrad.representations.subspace.basis import Basis
from quietgrad.representations.subspace.subspace import Embedded, Subspace, SubspaceCodec
from quietgrad.schedules import Schedule, value_at

LARGEST = 10.0
"""A gradient longer than this times the residual's clip is scaled down to it; only one that lies to more than 99.5%
inside the subspace loses residual by this."""

SLACK = 1e-5
ROUNDING = 2e-3

EXPANDED = 16
"""Runs of rows that are expanded from the subspace in one product."""


class ResidualGrads(PerSampleGrads):
    """(g_i − Bᵀw_i)·min(1, largest/‖g_i‖), never formed."""

    def __init__(self, embedded: Embedded, basis: Basis, space: Space, largest: float) -> None:
        self._embedded, self._basis, self._space = embedded, basis, space
        lengths = embedded.grads.squared_norms()
        self._scale = torch.where(
            lengths.isfinite(), (largest / lengths.sqrt().clamp_min(1e-300)).clamp_max(1.0), 0.0
        )
        inside = sum(
            (row_squared_norms(rows) for rows in embedded.coordinates.values()), torch.zeros_like(lengths)
        )
        bound = (lengths - (1 - EXCESS) * inside).clamp_min(0.0) + (SLACK + 4 * basis.error) * lengths
        self._squared_norms = (1 + ROUNDING) ** 2 * self._scale.square() * bound
        # A row that was not finite anywhere is not finite here: the clip drops it from this release too.
        self._squared_norms[~(lengths.isfinite() & inside.isfinite())] = torch.nan

    @property
    def samples(self) -> int:
        return self._embedded.grads.samples

    @property
    def space(self) -> Space:
        return self._space

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return self._embedded.grads.dtypes

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._squared_norms

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        scaled = weights.to(self._scale) * self._scale
        total = {name: block.double() for name, block in self._embedded.grads.weighted_sum(scaled).items()}
        kept = {
            name: zero_rows(rows, scaled == 0).double() * scaled[:, None]
            for name, rows in self._embedded.coordinates.items()
        }
        for start in range(0, self.samples, EXPANDED * RUN):
            part = slice(start, start + EXPANDED * RUN)
            inside = {name: _sums_of_runs(rows[part]) for name, rows in kept.items()}
            for name, block in self._basis.expand(inside).items():
                total[name] -= block.double().sum(0)
        return total

    def dense(self) -> Blocks:
        rows, inside = self._embedded.grads.dense(), self._basis.expand(self._embedded.coordinates)
        kept = {name: block - inside[name] for name, block in rows.items()}
        return {
            name: block * self._scale.to(block).view(-1, *[1] * (block.dim() - 1))
            for name, block in kept.items()
        }


class ResidualCodec(Codec):
    """r_i = g_i − BᵀB g_i in the whole space; decodes to what lies off span(B).

    Args:
        subspace: this step's codec of the embedding.
        space: the whole space.
        bound: S, the clip of this release.
    """

    def __init__(self, subspace: SubspaceCodec, space: Space, bound: float) -> None:
        self._subspace, self.space, self._largest = subspace, space, LARGEST * bound

    def encode(self, grads: PerSampleGrads) -> ResidualGrads:
        return ResidualGrads(self._subspace.embed(grads), self._subspace.basis, self.space, self._largest)

    def decode(self, released: Released) -> Blocks:
        # The residual is orthogonal to B, so all of the release that lies along B is noise: taking it off is free.
        return off_subspace(self._subspace.basis, released.blocks)


@dataclass(frozen=True, eq=False, kw_only=True)
class Residual(Representation):
    """encode(g) = g − BᵀB g, with the basis of a Subspace that the same mechanism releases.

    Args:
        subspace: shared by identity, so that both releases see one basis.
        bound: S, the clip of this release; gradients are scaled down to LARGEST·S first.
    """

    subspace: Subspace
    bound: float | Schedule

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        codec = public.codec(self.subspace)
        assert isinstance(codec, SubspaceCodec)
        return ResidualCodec(codec, public.space, value_at(self.bound, public.step)), state


def _sums_of_runs(rows: Float64[Tensor, "n k"]) -> Float64[Tensor, "m k"]:
    """Σ over every RUN rows, as they are added up in the gradients' own sum."""
    return torch.stack([part.sum(0) for part in rows.split(RUN)])


def off_subspace(basis: Basis, blocks: Blocks) -> Blocks:
    """v − BᵀBv."""
    along = basis.expand(basis.coordinates(blocks))
    return {name: block - along[name] for name, block in blocks.items()}

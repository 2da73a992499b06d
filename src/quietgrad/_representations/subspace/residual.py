"""What the subspace misses of each gradient: GEP's second release, without ever forming a residual matrix.

For an orthonormal B,  Σ c_i r_i = Σ c_i g_i − Bᵀ Σ c_i w_i  and  ‖r_i‖² = ‖g_i‖² − ‖w_i‖².

Formal guarantee: sensitivity is S at any scale of the gradients, inside span(B) too, whatever the roundings are. With
the coordinates w_i that were computed, B g_i = w_i − e_i, and E = BBᵀ − I, a row that is summed is exactly

    r_i = g_i − Bᵀw_i        ‖r_i‖² = ‖g_i‖² − ‖w_i‖² + 2⟨e_i, w_i⟩ + w_iᵀE w_i

* |⟨e_i, w_i⟩| ≤ ACCURACY·‖g_i‖·max_j‖B_j‖·‖w_i‖₁ (`inner_products`), and |w_iᵀE w_i| ≤ ‖E‖‖w_i‖², of which
  every refresh has a bound (`orthonormality_bound`). The clip sees all of it added up, of norms that are
  not below the truth where they are added and not above it where they are taken off.
* Each gradient is first scaled down to LARGEST·S, which bounds what may cancel in the sum. Gradients are added up RUN
  rows at a time, so that one row moves their sum by at most 2.5·10⁻⁴·LARGEST·S more than itself (`row_arithmetic`):
  half of the clip's margin. Coordinates are added up and expanded in float64: for k = 1000 and 32,768 rows, 4·10⁻⁵·S.

A float32 projection as a whole is not accurate enough: of a gradient of a million equal numbers along B, w came out
0.3% too long.

Checked by: tests/attacks/test_projected_lengths.py, tests/representations/test_subspace.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.row_arithmetic import ACCURACY, EXCESS, row_squared_norms, zero_rows
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.subspace.basis import Basis, Coordinates
from quietgrad._representations.subspace.subspace import Embedded, Subspace, SubspaceCodec
from quietgrad.schedules import Schedule, value_at

LARGEST = 10.0
"""A gradient longer than this times the residual's clip is scaled down to it; only one that lies to more than 99.5%
inside the subspace loses residual by this."""


class ResidualGrads(PerSampleGrads):
    """(g_i − Bᵀw_i)·min(1, largest/‖g_i‖), never formed."""

    def __init__(self, embedded: Embedded, basis: Basis, largest: float) -> None:
        self._embedded, self._basis = embedded, basis
        lengths = embedded.grads.squared_norms()
        self._scale = torch.where(
            lengths.isfinite(), (largest / lengths.sqrt().clamp_min(1e-300)).clamp_max(1.0), 0.0
        )
        inside = sum(
            (row_squared_norms(rows) for rows in embedded.coordinates.values()), torch.zeros_like(lengths)
        )
        bound = (lengths - (1 - EXCESS) * inside).clamp_min(0.0) + basis.error * inside
        bound += 2 * (1 + basis.error) * ACCURACY * lengths.sqrt() * _absolute_sums(embedded.coordinates)
        # A row that was not finite anywhere is not finite here: the clip drops it from this release too.
        broken = ~(lengths.isfinite() & inside.isfinite())
        self._squared_norms = (self._scale.square() * bound).masked_fill(broken, torch.nan)

    @property
    def samples(self) -> int:
        return self._embedded.grads.samples

    @property
    def space(self) -> Space:
        return self._embedded.grads.space

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._squared_norms

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Blocks:
        scaled = weights.to(self._scale) * self._scale
        total = {name: block.double() for name, block in self._embedded.grads.weighted_sum(scaled).items()}
        inside = {
            name: scaled @ zero_rows(rows, scaled == 0).double()
            for name, rows in self._embedded.coordinates.items()
        }
        for name, block in self._basis.expand_widely(inside).items():
            total[name] -= block
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
        return ResidualGrads(self._subspace.embed(grads), self._subspace.basis, self._largest)

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


def _absolute_sums(coordinates: Coordinates) -> Float64[Tensor, " n"]:
    """‖w_i‖₁."""
    return torch.stack([rows.double().abs().sum(1) for rows in coordinates.values()]).sum(0)


def off_subspace(basis: Basis, blocks: Blocks) -> Blocks:
    """v − BᵀBv."""
    along = basis.expand(basis.coordinates(blocks))
    return {name: block - along[name] for name, block in blocks.items()}

"""Formed rows times s·I + U·diag(D)·Uᵀ, without forming the products.

A scaled row is s·G + T·Uᵀ, with G as it was formed and T = [G, b]·U·D of r columns, rounded once. Both are numbers that
are there, so the scaled row is defined exactly. Its norm needs G's own, which came with it, and thin products:

    ‖s·G + T·Uᵀ‖² = s²‖G‖² + 2s·⟨G·U, T⟩ + ‖T·Uᵀ‖²,   ‖T·Uᵀ‖ = ‖T‖ for orthonormal U

**Rounding.** P shrinks some rows to a κ-th part, κ its condition number, so what is small beside ‖G‖ is κ times larger
beside the scaled row. Therefore (1) the error of G·U enters the norm as a bound, and (2) sums take runs of FEW rows.
The error of a run grows with its square: (FEW/RUN)²·2.5·10⁻⁴·2κ√r stays below SPENT for κ up to LARGEST and r = 16.
Rows beyond that are formed.

Checked by: tests/representations/test_scaled_rows.py
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.row_arithmetic import TINY, row_squared_norms, weighted_rows, zero_rows
from quietgrad._kernels.rounding import UNIT

FEW = 16
"""Rows that are added up in float32."""
LARGEST = 30.0
"""The condition number of P up to which runs of FEW rows are short enough."""


class ScaledRows(BlockGrads):
    """s·G_n + T_n·Uᵀ of a matrix `[o, i]`.

    Args:
        rows: G, formed, columns in any order.
        squared: ‖G_n‖², never below the truth.
        scale: s.
        thin: T.
        along: G·U, as it was computed.
        directions: U, its rows in the order of G's columns.
        beside: T·unit [n, o], where [U, unit] is orthonormal and not U alone.
        skew: how far they are from orthonormal.
        order: for each coordinate of the block, where it is in a row of G; None for the same order.
        shape: of the block.
    """

    algorithm = "scaled"

    def __init__(
        self,
        rows: Float[Tensor, "n o i"],
        squared: Float64[Tensor, " n"],
        scale: float,
        *,
        thin: Float[Tensor, "n o r"],
        along: Float[Tensor, "n o r"],
        directions: Float[Tensor, "i r"],
        beside: Float[Tensor, "n o"] | None,
        skew: float,
        order: Int[Tensor, " p"] | None,
        shape: torch.Size,
    ) -> None:
        self._rows, self._thin, self._scale, self._directions = rows, thin, scale, directions
        self._order, self._shape = order, shape
        self._squared = self._norms(squared, along, beside, skew)

    @property
    def samples(self) -> int:
        return self._rows.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        return self._rows.dtype

    @property
    def device(self) -> torch.device:
        return self._rows.device

    @property
    def row_bytes(self) -> float:
        return (self._rows[:1].numel() + self._thin[:1].numel()) * self._rows.element_size()

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._squared

    def _norms(
        self,
        squared: Float64[Tensor, " n"],
        along: Float[Tensor, "n o r"],
        beside: Float[Tensor, "n o"] | None,
        skew: float,
    ) -> Float64[Tensor, " n"]:
        inner = (self._thin * along).sum((1, 2), dtype=torch.float64)
        lengths = row_squared_norms(self._thin)
        # ‖T·Uᵀ‖² = ‖T‖² − ‖T·unit‖², as far as [U, unit] is orthonormal; each T·unit adds r products.
        lifted = lengths if beside is None else lengths - beside.double().square().sum(1)
        # An entry of G·U adds i products, each off by u of them and the sum by u a term, in whatever order.
        terms = self._rows.shape[2] + 3
        unit = UNIT if self.dtype == torch.float32 else UNIT**2
        error = terms * unit * float(self._directions.norm()) * (squared * lengths).sqrt()
        error_of_lifted = (skew + 4 * (self._thin.shape[2] + 2) * unit) * lengths
        exact = self._scale**2 * squared + 2 * self._scale * inner + lifted
        return exact.clamp_min(0.0) * (1 + 1e-12) + 2 * self._scale * error + error_of_lifted

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        total, extra = (_sum(weights, rows.flatten(1)) for rows in (self._rows, self._thin))
        outputs, rank = self._thin.shape[1:]
        lifted = extra.view(outputs, rank) @ self._directions.double().T
        return self._in_order((self._scale * total).view(outputs, -1) + lifted)

    def dense(self) -> Float[Tensor, "n *shape"]:
        rows = torch.baddbmm(
            self._rows, self._thin, self._directions.T.expand(self.samples, -1, -1), beta=self._scale
        )
        return self._in_order(rows)

    def _in_order(self, matrices: Float[Tensor, "*n o i"]) -> Tensor:
        flat = matrices.flatten(-2)
        flat = flat if self._order is None else flat[..., self._order]
        return flat.reshape(*flat.shape[:-1], *self._shape)


def _sum(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float64[Tensor, " p"]:
    """Σ_n w_n·row_n: by a kernel, which adds in float64, else in runs of FEW rows."""
    if rows.device.type != "cpu" or weighted_rows.find_kernel(weights, rows) is not None:
        return weighted_rows(weights, rows).double()
    dropped = weights == 0
    rows = zero_rows(rows, dropped)
    if bool((weights.abs() < TINY).logical_and(~dropped).any()):
        return weights.double() @ rows.double()
    total = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    w = weights.to(rows.dtype)
    for part in (slice(start, start + FEW) for start in range(0, len(rows), FEW)):
        total += w[part] @ rows[part]
    return total

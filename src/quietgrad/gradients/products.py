"""Products of per-sample matrices with one matrix, and inner products of rows.

Every sample is multiplied on its own (`bmm`), so that its row does not depend on who else is in the batch, not even in
the last bit: where huge tokens cancel, the last bits are all there is.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

PIECE = 256
"""Terms of an inner product that are added up in float32."""

ACCURACY = (PIECE + 8) * 2.0**-24
"""How far an inner product of rows may be off, in parts of ‖row‖·‖direction‖: u for every term of a piece, whatever
the order of additions, and u each for the rows' own entries and for what is rounded to float32 afterwards."""


def each_times(rows: Float[Tensor, "n x d"], matrix: Float[Tensor, "d r"]) -> Float[Tensor, "n x r"]:
    """rows_n · matrix."""
    return torch.bmm(rows, matrix.to(rows.dtype).expand(len(rows), *matrix.shape))


def each_off(rows: Float[Tensor, "n x i"], right: Float[Tensor, "r i"]) -> Float[Tensor, "n x i"]:
    """rows_n · (I − RᵀR)."""
    return rows - each_times(each_times(rows, right.T), right)


def outer_sums(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> Float[Tensor, "n o i"]:
    """G_n = Σ_t b_t a_tᵀ."""
    return torch.bmm(b.transpose(1, 2), a)


def inner_products(rows: Float[Tensor, "n p"], directions: Float[Tensor, "k p"]) -> Float64[Tensor, "n k"]:
    """⟨row_i, direction_j⟩ to within ACCURACY·‖row_i‖·‖direction_j‖, however long they are.

    Formal guarantee: a float32 sum of m products is off by at most m·u·Σ|x||y| ≤ m·u·‖x‖‖y‖. Summed as a whole, a row
    of a million equal numbers comes out 0.3% too long; so PIECE terms are added in float32 and these sums in float64:
    Σ_pieces PIECE·u·‖x_piece‖‖y_piece‖ ≤ PIECE·u·‖x‖‖y‖.
    """
    directions = directions.to(rows.dtype)
    if rows.dtype == torch.float64:
        return rows @ directions.T
    total = rows.new_zeros(len(rows), len(directions), dtype=torch.float64)
    product = rows.new_empty(len(rows), len(directions))
    for x, y in zip(rows.split(PIECE, 1), directions.split(PIECE, 1), strict=True):
        total += torch.mm(x, y.T, out=product)
    return total

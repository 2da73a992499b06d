"""Products of per-sample matrices with one matrix.

Every sample is multiplied on its own (`bmm`), so that its row does not depend on who else is in the batch, not even in
the last bit: where huge tokens cancel, the last bits are all there is.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def each_times(rows: Float[Tensor, "n x d"], matrix: Float[Tensor, "d r"]) -> Float[Tensor, "n x r"]:
    """rows_n · matrix."""
    return torch.bmm(rows, matrix.to(rows.dtype).expand(len(rows), *matrix.shape))


def each_off(rows: Float[Tensor, "n x i"], right: Float[Tensor, "r i"]) -> Float[Tensor, "n x i"]:
    """rows_n · (I − RᵀR)."""
    return rows - each_times(each_times(rows, right.T), right)


def outer_sums(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> Float[Tensor, "n o i"]:
    """G_n = Σ_t b_t a_tᵀ."""
    return torch.bmm(b.transpose(1, 2), a)

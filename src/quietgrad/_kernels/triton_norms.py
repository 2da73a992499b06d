"""Norms and sums of per-sample gradients by Triton kernels; the references are in `_gradients` and `_capture`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._kernels.gram_rows import GramSums
from quietgrad._kernels.rounding import CORE_POSITIONS, THETA, slack
from quietgrad._kernels.transfer import upload

SPAN = 1 << 14
"""Numbers of a row that one program squares."""
DEPTH = 2048
"""Features of an inner product that are added up in float32."""


class Tiles(NamedTuple):
    """Sides of what a program computes; the interpreter wants large ones and a device small ones."""

    row: int = 1024
    samples: int = 16
    gram: int = 32
    formed: int = 64
    depth: int = 32
    positions: int = 32


TILES = Tiles()


def is_single(*tensors: Any) -> bool:
    """Tell whether all tensors are float32."""
    return all(tensor.dtype == torch.float32 for tensor in tensors)


def row_squared_norms(rows: Float[Tensor, "n *rest"], tiles: Tiles = TILES) -> Float64[Tensor, " n"]:
    """Compute ‖row‖² in float64 from the start."""
    flat = rows.reshape(len(rows), -1).contiguous()
    return _squares(flat, tiles) * (1 + slack(torch.float64, flat.shape[1]))


def _squares(flat: Float[Tensor, "n p"], tiles: Tiles) -> Float64[Tensor, " n"]:
    from quietgrad._kernels.triton_code import norm_code

    n, p = flat.shape
    if n == 0 or p == 0:
        return torch.zeros(n, dtype=torch.float64, device=flat.device)
    # Rows are long and few. One program for each would leave most of a device idle.
    span = max(tiles.row, SPAN)
    out = torch.empty(n, math.ceil(p / span), dtype=torch.float64, device=flat.device)
    norm_code.row_squares[(out.shape[1], n)](flat, out, p, SPAN=span, BLOCK=tiles.row)
    return out.sum(1)


def weighted_rows(
    weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"], tiles: Tiles = TILES
) -> Float64[Tensor, " p"]:
    """Compute Σ_i w_i·row_i in float64; rows of weight 0 are not read."""
    from quietgrad._kernels.triton_code import norm_code

    n, p = rows.shape
    out = torch.zeros(p, dtype=torch.float64, device=rows.device)
    if n and p:
        block = max(16, tiles.row // tiles.samples)
        norm_code.weighted_columns[(math.ceil(p / block),)](
            weights.double().contiguous(), rows.contiguous(), out, n, p, ROWS=tiles.samples, BLOCK=block
        )
    return out


def gram_sums(
    a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"], lost: float, tiles: Tiles = TILES
) -> GramSums:
    """Compute ‖Σ_t b_t a_tᵀ‖² from Gram matrices or from tiles of the product, whichever is less work.

    Neither is stored. With exact squares and outer sums in float64, the roundings are those of float32 sums:

    * Gram matrices: each entry is off by at most d·u·‖x_t‖‖x_s‖, d the terms of a part, so that the norm is by
      (d_a + d_b + 1)·u·(Σ_t ‖a_t‖‖b_t‖)²;
    * formed tiles: ‖fl(G) − G‖ ≤ r·u·Σ_t ‖a_t‖‖b_t‖ =: r·u·L for runs of r positions, and ‖G‖ ≤ L, so that the
      square is off by at most (2r + 1)·u·L².

    Factors in bfloat16 go to tensor cores, where both are THETA times as large (`rounding`). The engine widens factors
    to float32 today, so that only tests take this path.
    """
    a, b = a.contiguous(), b.contiguous()
    n, t, i, o = *a.shape, b.shape[2]
    # Two symmetric Gram matrices take t²·(i + o)/2 products, the formed gradient t·i·o.
    by_gram = t * (i + o) < 2 * i * o
    squared = (_gram_squares if by_gram else _formed_squares)(a, b, tiles)
    terms = min(i, DEPTH) + min(o, DEPTH) if by_gram else 2 * min(t, _run_of(a.dtype))
    roundings = math.ceil((terms + 1) * (1.0 if a.dtype == torch.float32 else THETA))
    of_a, of_b = (
        (_squares(x.reshape(n * t, -1), tiles).reshape(n, t).clamp_min(0.0) + lost).sqrt() for x in (a, b)
    )
    roots = torch.stack([(of_a * of_b).sum(1), of_a.sum(1), of_b.sum(1)], 1)
    return GramSums(squared, roots, roundings)


def _run_of(dtype: torch.dtype) -> int:
    return 256 if dtype == torch.float32 else CORE_POSITIONS


def _wide(x: Tensor) -> bool:
    """Whether factors are converted first: the interpreter, which has CPU tensors, multiplies bfloat16 wrongly."""
    return x.device.type == "cpu"


def _gram_squares(
    a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"], tiles: Tiles
) -> Float64[Tensor, " n"]:
    from quietgrad._kernels.triton_code import norm_code

    n, t, i, o = *a.shape, b.shape[2]
    out = torch.zeros(n, math.ceil(t / tiles.gram) ** 2, dtype=torch.float64, device=a.device)
    norm_code.gram_tiles[(out.shape[1], n)](
        a, b, out, t, i, o, T=tiles.gram, D=tiles.depth, DEPTH=DEPTH, WIDE=_wide(a)
    )
    return out.sum(1)


def _formed_squares(
    a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"], tiles: Tiles
) -> Float64[Tensor, " n"]:
    from quietgrad._kernels.triton_code import norm_code

    n, t, i, o = *a.shape, b.shape[2]
    side = tiles.formed
    out = torch.zeros(n, math.ceil(i / side) * math.ceil(o / side), dtype=torch.float64, device=a.device)
    norm_code.formed_tiles[(out.shape[1], n)](
        a, b, out, t, i, o, WI=side, WO=side, T=tiles.positions, RUN=_run_of(a.dtype), WIDE=_wide(a),
        num_warps=8,
    )  # fmt: skip
    return out.sum(1)


def products_in_runs(
    b: Float[Tensor, "n t o"],
    a: Float[Tensor, "n t i"],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
    tiles: Tiles = TILES,
) -> Float64[Tensor, "o i"]:
    """Compute Σ_n w_n Σ_t b_t a_tᵀ: runs in float32, their sums in float64."""
    from quietgrad._kernels.triton_code import norm_code

    t, i, o = a.shape[1], a.shape[2], b.shape[2]
    out = torch.zeros(o, i, dtype=torch.float64, device=a.device)
    bounds = torch.tensor([[part.start for part in places], [part.stop for part in places]]).to(torch.int32)
    side = tiles.formed
    norm_code.run_products[(max(1, math.ceil(i / side) * math.ceil(o / side)),)](
        b.contiguous(), a.contiguous(), weights.float().contiguous(), *upload(bounds, a.device), out,
        len(places), max(1, t), i, o, WI=side, WO=side, T=tiles.positions, num_warps=8,
    )  # fmt: skip
    return out


def norm_gradients(
    x: Float[Tensor, "n t d"],
    b: Float[Tensor, "n t d"],
    mean: Float[Tensor, "n t"],
    scale: Float[Tensor, "n t"],
    tiles: Tiles = TILES,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]:
    """Compute ∂γ and ∂β of every sample, each added up in float64."""
    from quietgrad._kernels.triton_code import norm_code

    n, t, d = x.shape
    gamma, beta = x.new_zeros(n, d), x.new_zeros(n, d)
    if n and d:
        side = max(16, tiles.row // tiles.samples)
        norm_code.norm_rows[(math.ceil(d / side), n)](
            x.contiguous(), b.contiguous(), mean.contiguous(), scale.contiguous(), gamma, beta, t, d,
            T=tiles.samples, D=side,
        )  # fmt: skip
    return gamma, beta

"""Norms, sums and products of rows, one a sample, that are as right as they say whatever the numbers are.

**Norms.** Sums of squares that neither overflow, underflow nor fall below the truth, whatever the length of the rows.

    ‖row‖² ≤ (1 + slack)·Σ_runs fl(Σ_{j in run} x_j²)        the outer sum in float64

Formal guarantee: all terms are positive, so a float32 sum of m squares is at most (m + 1)·u below the true one, and its
root and the root's square 2u more; u = 2⁻²⁴. With runs of SQUARES numbers the slack is 7.9·10⁻⁶ for rows of any length.
Squares below 2⁻¹²⁶ may be lost: a sum that p of them could have changed by 10⁻⁶ is added again in float64, as is one
that overflowed. float64 holds the square of a float32 exactly.

**Sums** over samples: a few rows at a time in their own precision, these sums in float64.

    Σ_i w_i·g_i = Σ_runs fl32(Σ_{i in run} w_i·g_i)        the outer sum in float64, if there are several runs

Formal guarantee: two batches that differ in one row, which is zero in the other one, differ in the sum of one run; all
other runs hold the same numbers in the same places and add up to the same bits. Nothing grows with the batch. In
whatever order a processor adds the K terms of a run, its float32 sum is off by at most u·Σ_k ‖s_k‖, s_k the partial
sums and u = 2⁻²⁴; a term is in at most K of them. With every row at most C long, the two sums differ, beyond the row
itself, by at most

* formed rows, K = r ≤ RUN: 2u·Σ_{k≤r} k·C = 2.5·10⁻⁴·C;
* products of factors, r samples of t positions, K = r·t ≤ POSITIONS, Σ_t ‖a_t‖‖b_t‖ ≤ κ·C for every sample:
  2u·(r·K − r(r−1)/2)·κ·C, since at worst each sample's terms are one, added before all others. With t = 1 that is
  3.9·10⁻³·C; `longest` says which κ keeps it below SPENT with more positions. A run within one sample is empty in the
  other batch: u·K·κ·C.

The C library adds all formed rows in float64: at most n²·2⁻⁵²·C for n of them, 3·10⁻⁶·C for a hundred thousand.

A clip's margin is above SPENT. The bound is reached to a fourth by rows along one coordinate that first add up to a
power of two and then are half a unit of rounding long (`tests/attacks/test_conspiring_rows.py`).

**Products** of per-sample matrices with one matrix, and inner products of rows. Every sample is multiplied on its own
(`bmm`), so that its row does not depend on who else is in the batch, not even in the last bit: where huge tokens
cancel, the last bits are all there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from quietgrad._kernels.library import in_use
from quietgrad._kernels.product_sums import patch_sums, product_sums, served
from quietgrad._kernels.rows import row_squares, row_sums
from quietgrad._kernels.rows import served as served_rows

SINGLE = frozenset({torch.float32, torch.float64})
"""Precisions that rows are left in: asked of every gradient in every step, so that nothing is computed for it."""


def at_least_single(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In float32 where they had half precision: a sum of a thousand rows would lose whole rows to rounding."""
    return values if values.dtype in SINGLE else values.to(torch.promote_types(values.dtype, torch.float32))


def as_rows(block: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "n q"]:
    """Each row as a vector; that of a single number has length 1."""
    return block.flatten(1) if block.dim() > 1 else block[:, None]


def zero_rows(rows: Shaped[Tensor, "n *rest"], dropped: Bool[Tensor, " n"]) -> Shaped[Tensor, "n *rest"]:
    """`rows` with the dropped ones exactly zero: multiplying a NaN by zero would keep the NaN."""
    if not bool(dropped.any()):
        return rows
    return rows.masked_fill(dropped.view(-1, *[1] * (rows.dim() - 1)), 0.0)


# ---- norms ---------------------------------------------------------------------------------------------------

SQUARES = 128
"""Squares that are added in the rows' own precision."""

LOST = 2.0**-126
"""The largest square that a processor may take for zero."""

EXCESS = 2e-5
"""The most, relative to the truth, that a squared norm lies above it: the slack, for rounding that went up."""

AT_ONCE = 1 << 20
"""Numbers that are converted to float64 at a time."""


def row_squared_norms(rows: Float[Tensor, "n *rest"]) -> Float64[Tensor, " n"]:
    """‖row‖² in float64, never below the truth and at most EXCESS of it above it."""
    flat, library = as_rows(rows), in_use()
    if library is not None and served_rows(flat):
        return row_squares(library, flat) * (1 + slack(torch.float64, flat.shape[1]))
    if flat.dtype == torch.float64:
        return _squared_in_float64(flat)
    squared = (1 + slack(flat.dtype, min(SQUARES, flat.shape[1]))) * _squared_in_runs(flat)
    trusted = (squared > flat.shape[1] * LOST * 1e6) & squared.isfinite()
    if not bool(trusted.all()):
        chosen = (~trusted).nonzero().flatten()
        squared[chosen] = _squared_in_float64(flat[chosen])
    return squared


def slack(dtype: torch.dtype, terms: int) -> float:
    """How far a norm's square, computed from that many squares in a precision, may lie below the truth."""
    u = float(torch.finfo(dtype).eps) / 2
    return (terms + 4) * u / (1 - (terms + 4) * u)


def _squared_in_runs(flat: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    size = flat.shape[1]
    whole = size - size % SQUARES
    squared = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    if whole:
        norms = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, SQUARES)), dim=2)
        squared += norms.double().square_().sum(1)
    if whole < size:
        squared += torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square_()
    return squared


def _squared_in_float64(flat: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    squared = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    step = max(1, AT_ONCE // max(1, len(flat)))
    for start in range(0, flat.shape[1], step):
        squared += flat[:, start : start + step].double().square().sum(1)
    return squared * (1 + slack(torch.float64, flat.shape[1]))


# ---- sums ----------------------------------------------------------------------------------------------------

RUN = 64
"""Formed rows that are added up in float32."""

POSITIONS = 256
"""Positions whose products are added up in float32: fewer would cost more passes over the result, which is as large as
the parameter; more would need a wider margin."""

SPENT = 4.5e-3
"""What the roundings of one run may move a sum, in parts of the clip's bound."""

UNIT = 2.0**-24
"""u, float32's unit of rounding."""

TINY = 2.0**-100
"""A weight below this comes near what float32 rounds coarsely or flushes to zero: such a row is added in float64."""

SMALL = 1 << 15
"""Numbers that are converted to float64 faster than added in runs."""


def runs(samples: int, positions: int, dtype: torch.dtype, most: int = POSITIONS) -> Iterator[slice]:
    """Which positions, those of all samples side by side, are added up at a time: whole samples, or parts of one.

    Args:
        positions: of each sample.
        most: positions of a run.
    """
    total, each = samples * positions, max(1, positions)
    if dtype == torch.float64:
        return iter([slice(0, total)])
    if each <= most:
        step = most // each * each
        return (slice(start, min(start + step, total)) for start in range(0, max(1, total), step))
    step = math.ceil(each / math.ceil(each / most))
    return (
        slice(start, min(start + step, first + each))
        for first in range(0, max(1, total), each)
        for start in range(first, first + each, step)
    )


def longest(positions: int) -> float:
    """κ: the largest Σ_t ‖a_t‖‖b_t‖/‖G‖ of a sample with which a run of products stays within SPENT."""
    together = max(1, POSITIONS // max(1, positions))
    terms = min(max(1, positions) * together, POSITIONS)
    partial_sums = terms if together == 1 else 2 * (together * terms - together * (together - 1) / 2)
    return SPENT / (UNIT * partial_sums)


def added_up(parts: Iterable[Tensor]) -> Float[Tensor, "..."]:
    """The sum of at least one part: a single one as it is (a wider copy holds the same numbers), more in float64."""
    waiting = iter(parts)
    first = next(waiting)
    total: Tensor | None = None
    for part in waiting:
        total = first.double() if total is None else total
        total += part
    return first if total is None else total


def weighted_products(
    b: Float[Tensor, "n t o"], a: Float[Tensor, "n t i"], weights: Float[Tensor, " n"], most: int = POSITIONS
) -> Float[Tensor, "o i"]:
    """Σ_n w_n Σ_t b_t a_tᵀ in runs; a sample of weight 0 adds exactly 0, even if it is not a number.

    Several runs are one pass of the C library's, which writes no run's product to memory.
    """
    places, library = list(runs(len(a), a.shape[1], a.dtype, most)), in_use()
    if library is not None and len(places) > 1 and served(a, b):
        return product_sums(library, b, a, weights, places)
    dropped = weights == 0
    a, b = zero_rows(a, dropped), zero_rows(b, dropped)
    w = weights.to(a.dtype).view(-1, 1, 1)
    if a.shape[2] < b.shape[2]:
        a = a * w
    else:
        b = b * w
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    return added_up(b[part].T @ a[part] for part in places)


def weighted_patches(
    b: Float[Tensor, "n t o"], strips: Sequence[Float[Tensor, "n h w i"]], weights: Float[Tensor, " n"]
) -> Float64[Tensor, "o strips_i"]:
    """The same for a's that are the strips of patches side by side, by the C library alone: it reads them off their
    picture, where torch's products would want them unfolded."""
    library = in_use()
    assert library is not None
    return patch_sums(library, b, strips, weights, list(runs(len(b), b.shape[1], b.dtype)))


def weighted_rows(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    """Σ_i w_i·row_i; a row of weight 0 adds exactly 0, even if it is not a number. The C library's are float64 sums."""
    library = in_use()
    if library is not None and served_rows(rows):
        return row_sums(library, weights, rows)
    ordinary = weights.abs() >= TINY
    if bool(ordinary.all()):
        return _in_runs(weights, rows)
    total = _in_runs(weights.masked_fill(~ordinary, 0.0), zero_rows(rows, ~ordinary)).double()
    for i in ((weights != 0) & ~ordinary).nonzero().flatten().tolist():
        total += weights[i].double() * rows[i].double()
    return total


def _in_runs(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    if rows.dtype == torch.float64 or (len(rows) > RUN and rows.numel() <= SMALL):
        return weights.double() @ rows.double()
    w = weights.to(rows.dtype)
    return added_up(w[part] @ rows[part] for part in _runs_of_rows(len(rows)))


def _runs_of_rows(samples: int) -> Iterator[slice]:
    return (slice(start, start + RUN) for start in range(0, max(1, samples), RUN))


# ---- products ------------------------------------------------------------------------------------------------

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

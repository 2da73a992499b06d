"""Norms, sums and products of rows, one a sample, in torch; kernels may replace those that are operations.

**Norms.** Sums of squares that neither overflow, underflow nor fall below the truth, whatever the length of the rows.

    ‖row‖² ≤ (1 + slack)·Σ_runs fl(Σ_{j in run} x_j²)        the outer sum in float64

Formal guarantee: all terms are positive, so a float32 sum of m squares is at most (m + 1)·u below the true one, and its
root and the root's square 2u more; u = 2⁻²⁴. With runs of SQUARES numbers the slack is 7.9·10⁻⁶ for rows of any length.
Squares below 2⁻¹²⁶ may be lost: a sum that p of them could have changed by 10⁻⁶ is added again in float64, as is one
that overflowed. float64 holds the square of a float32 exactly.

**Sums** over samples: a few rows at a time in float32, these sums in float64. `_kernels.rounding` says why, and how far
one sample can move such a sum.

**Products** of per-sample matrices with one matrix, and inner products of rows. Every sample is multiplied on its own
(`bmm`), so that its row does not depend on who else is in the batch, not even in the last bit: where huge tokens
cancel, the last bits are all there is.

Checked by: tests/gradients/test_precision.py, tests/laws/test_law2_floating_point.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from quietgrad._kernels.registry import device_of_first, operation
from quietgrad._kernels.rounding import LOST, POSITIONS, RUN, runs, slack

SINGLE = frozenset({torch.float32, torch.float64})
"""Precisions that rows are left in: asked of every gradient in every step, so that nothing is computed for it."""


def at_least_single(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Convert half precision to float32: a sum of a thousand rows would lose whole rows to rounding."""
    return values if values.dtype in SINGLE else values.to(torch.promote_types(values.dtype, torch.float32))


def as_rows(block: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "n q"]:
    """Flatten each row to a vector; that of a single number has length 1."""
    return block.flatten(1) if block.dim() > 1 else block[:, None]


def zero_rows(rows: Shaped[Tensor, "n *rest"], dropped: Bool[Tensor, " n"]) -> Shaped[Tensor, "n *rest"]:
    """Make the dropped rows exactly zero: multiplying a NaN by zero would keep the NaN."""
    # Asking a device would make the host wait for it: there, a copy is the cheaper of the two.
    if rows.device.type == "cpu" and not bool(dropped.any()):
        return rows
    return rows.masked_fill(dropped.view(-1, *[1] * (rows.dim() - 1)), 0.0)


# ---- norms ---------------------------------------------------------------------------------------------------

SQUARES = 128
"""Squares that are added in the rows' own precision."""

EXCESS = 2e-5
"""The most, relative to the truth, that a squared norm lies above it: the slack, for rounding that went up."""

AT_ONCE = 1 << 20
"""Numbers that are converted to float64 at a time; sixteen times as many on devices, where a kernel takes time to
start."""


@operation()
def row_squared_norms(rows: Float[Tensor, "n *rest"]) -> Float64[Tensor, " n"]:
    """Compute ‖row‖² in float64, never below the truth and at most EXCESS of it above it.

    Checked by: tests/gradients/test_precision.py, tests/kernels/test_rows.py
    """
    flat = as_rows(rows)
    # Devices add in float64 from the start: to look for the rows that need it, the host would have to wait.
    if flat.dtype == torch.float64 or flat.device.type != "cpu":
        return _squared_in_float64(flat)
    squared = (1 + slack(flat.dtype, min(SQUARES, flat.shape[1]))) * _squared_in_runs(flat)
    # Where float32 may have lost small squares, or overflowed, the row is squared again in float64.
    trusted = (squared > flat.shape[1] * LOST * 1e6) & squared.isfinite()
    if not bool(trusted.all()):
        chosen = (~trusted).nonzero().flatten()
        squared[chosen] = _squared_in_float64(flat[chosen])
    return squared


def _squared_in_runs(flat: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    size = flat.shape[1]
    whole = size - size % SQUARES
    squared = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    if whole:
        # torch adds the squares of one run of 128 numbers in float32, in an order of its own. The bound on its error
        # counts additions only, so it holds for every order.
        norms = torch.linalg.vector_norm(flat[:, :whole].unflatten(1, (-1, SQUARES)), dim=2)
        squared += norms.double().square_().sum(1)
    if whole < size:
        squared += torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square_()
    return squared


def _squared_in_float64(flat: Float[Tensor, "n p"]) -> Float64[Tensor, " n"]:
    squared = torch.zeros(len(flat), dtype=torch.float64, device=flat.device)
    # In parts, since a float64 copy of all rows would take twice the memory of the gradients themselves.
    step = max(1, _at_once(flat) // max(1, len(flat)))
    for start in range(0, flat.shape[1], step):
        squared += flat[:, start : start + step].double().square().sum(1)
    return squared * (1 + slack(torch.float64, flat.shape[1]))


def _at_once(rows: Tensor) -> int:
    return AT_ONCE if rows.device.type == "cpu" else AT_ONCE << 4


# ---- sums ----------------------------------------------------------------------------------------------------

TINY = 2.0**-100
"""A weight below this comes near what float32 rounds coarsely or flushes to zero: such a row is added in float64."""

SMALL = 1 << 15
"""Numbers that are converted to float64 faster than added in runs."""


def added_up(parts: Iterable[Tensor]) -> Float[Tensor, "..."]:
    """Add up at least one part: several in float64, a single one as it is, since widening adds nothing."""
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
    """Compute Σ_n w_n Σ_t b_t a_tᵀ in runs of at most `most` positions."""
    return products_in_runs(b, a, weights, list(runs(len(a), a.shape[1], a.dtype, most)))


@operation()
def products_in_runs(
    b: Float[Tensor, "n t o"],
    a: Float[Tensor, "n t i"],
    weights: Float[Tensor, " n"],
    places: Sequence[slice],
) -> Float[Tensor, "o i"]:
    """Compute Σ_n w_n Σ_t b_t a_tᵀ; a sample of weight 0 adds exactly 0, even if it is not a number.

    Args:
        places: the runs; together they are all positions of all samples.

    Checked by: tests/kernels/test_product_sums.py, tests/attacks/test_conspiring_rows.py
    """
    # By filling in and not by multiplying: zero times NaN is NaN, and a dropped sample is often one that holds a NaN.
    dropped = weights == 0
    if a.device.type != "cpu" or bool(dropped.any()):
        a, b = zero_rows(a, dropped), zero_rows(b, dropped)
    w = weights.to(a.dtype).view(-1, 1, 1)
    # The narrower factor is the cheaper one to scale.
    if a.shape[2] < b.shape[2]:
        a = a * w
    else:
        b = b * w
    a, b = a.flatten(0, 1), b.flatten(0, 1)
    return added_up(b[part].T @ a[part] for part in places)


@operation(lambda _, rows: device_of_first(rows))
def weighted_rows(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    """Compute Σ_i w_i·row_i; a row of weight 0 adds exactly 0, even if it is not a number.

    Checked by: tests/gradients/test_precision.py, tests/kernels/test_rows.py
    """
    # A weight is C/‖g‖. For a record scaled by 10³⁰ or more, weight times row is an ordinary number, but the weight
    # itself is near the smallest float32. So these few rows are added in float64.
    if rows.device.type != "cpu":
        return _in_float64(weights, rows)
    ordinary = weights.abs() >= TINY
    if bool(ordinary.all()):
        return _in_runs(weights, rows)
    total = _in_runs(weights.masked_fill(~ordinary, 0.0), zero_rows(rows, ~ordinary)).double()
    for i in ((weights != 0) & ~ordinary).nonzero().flatten().tolist():
        total += weights[i].double() * rows[i].double()
    return total


def _in_float64(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float64[Tensor, " p"]:
    """Add all rows in float64, some columns at a time: no weight is too small, and nothing is to be asked."""
    w, dropped = weights.double(), weights == 0
    step = max(1, _at_once(rows) // max(1, len(rows)))
    parts = [w @ zero_rows(part, dropped).double() for part in rows.split(step, 1)]
    return torch.cat(parts) if parts else w.new_zeros(rows.shape[1])


def _in_runs(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    # A small matrix is widened as a whole: one product in float64 takes less time than several runs.
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


@operation()
def each_times(rows: Float[Tensor, "n x d"], matrix: Float[Tensor, "d r"]) -> Float[Tensor, "n x r"]:
    """Compute rows_n · matrix.

    Checked by: tests/kernels/test_thin_rows.py
    """
    return torch.bmm(rows, matrix.to(rows.dtype).expand(len(rows), *matrix.shape))


@operation()
def lifted_rows(
    rows: Float[Tensor, "n x d"], thin: Float[Tensor, "n x r"], lifted: Float[Tensor, "r d"], scale: float
) -> Float[Tensor, "n x d"]:
    """Compute scale·rows_n + thin_n · lifted.

    Checked by: tests/kernels/test_thin_rows.py
    """
    return torch.baddbmm(rows, thin, lifted.to(rows.dtype).expand(len(rows), *lifted.shape), beta=scale)


def each_off(rows: Float[Tensor, "n x i"], right: Float[Tensor, "r i"]) -> Float[Tensor, "n x i"]:
    """Compute rows_n · (I − RᵀR)."""
    return rows - each_times(each_times(rows, right.T), right)


def outer_sums(a: Float[Tensor, "n t i"], b: Float[Tensor, "n t o"]) -> Float[Tensor, "n o i"]:
    """Form G_n = Σ_t b_t a_tᵀ."""
    return torch.bmm(b.transpose(1, 2), a)


def inner_products(rows: Float[Tensor, "n p"], directions: Float[Tensor, "k p"]) -> Float64[Tensor, "n k"]:
    """Compute ⟨row_i, direction_j⟩ to within ACCURACY·‖row_i‖·‖direction_j‖, however long they are.

    Formal guarantee: a float32 sum of m products is off by at most m·u·Σ|x||y| ≤ m·u·‖x‖‖y‖. Summed as a whole, a row
    of a million equal numbers comes out 0.3% too long; so PIECE terms are added in float32 and these sums in float64:
    Σ_pieces PIECE·u·‖x_piece‖‖y_piece‖ ≤ PIECE·u·‖x‖‖y‖.

    Checked by: tests/attacks/test_projected_lengths.py
    """
    directions = directions.to(rows.dtype)
    if rows.dtype == torch.float64:
        return rows @ directions.T
    if rows.device.type != "cpu":
        return _inner_products_at_once(rows, directions)
    total = rows.new_zeros(len(rows), len(directions), dtype=torch.float64)
    product = rows.new_empty(len(rows), len(directions))
    for x, y in zip(rows.split(PIECE, 1), directions.split(PIECE, 1), strict=True):
        total += torch.mm(x, y.T, out=product)
    return total


def _inner_products_at_once(
    rows: Float[Tensor, "n p"], directions: Float[Tensor, "k p"]
) -> Float64[Tensor, "n k"]:
    """The same for devices, where starting a kernel for each piece would take longer than the products."""
    total = rows.new_zeros(len(rows), len(directions), dtype=torch.float64)
    pieces = max(1, _at_once(rows) // max(1, len(rows) * len(directions)))
    for x, y in zip(rows.split(pieces * PIECE, 1), directions.split(pieces * PIECE, 1), strict=True):
        whole = x.shape[1] - x.shape[1] % PIECE
        parts = (part[:, :whole].unflatten(1, (-1, PIECE)).transpose(0, 1) for part in (x, y))
        left, right = parts
        total += torch.bmm(left, right.transpose(1, 2)).double().sum(0)
        total += x[:, whole:] @ y[:, whole:].T
    return total

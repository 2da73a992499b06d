"""Sums over samples: a few rows at a time in their own precision, these sums in float64.

    Σ_i w_i·g_i = Σ_runs fl32(Σ_{i in run} w_i·g_i)        the outer sum in float64, if there are several runs

Formal guarantee: two batches that differ in one row, which is zero in the other one, differ in the sum of one run; all
other runs hold the same numbers in the same places and add up to the same bits. A float32 sum of r rows of norm ≤ C is
off by at most u·Σ_{k≤r} k·C, u = 2⁻²⁴: with RUN rows 1.3·10⁻⁴·C, so that the two sums differ by at most 2.6·10⁻⁴·C more
than the row itself. Nothing grows with the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad.gradients.base import zero_rows

RUN = 64
"""Formed rows that are added up in float32."""

POSITIONS, FEWEST, MOST = 4096, 32, 512
"""A product of factors adds up so many positions (and samples, within limits) in float32: fewer would cost more passes
over the result, which is as large as the parameter."""

TINY = 2.0**-100
"""A weight below this comes near what float32 rounds coarsely or flushes to zero: such a row is added in float64."""

SMALL = 1 << 15
"""Numbers that are converted to float64 faster than added in runs."""


def widened(x: Tensor) -> Tensor:
    """At least float32: norms, weights and sums of half-precision gradients are none of them half."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def runs(samples: int, dtype: torch.dtype, positions: int) -> Iterator[slice]:
    """Which samples a product of factors adds up at a time, with so many positions each."""
    step = min(MOST, max(FEWEST, POSITIONS // max(1, positions)))
    if dtype == torch.float64:
        step = max(1, samples)
    return (slice(start, min(start + step, samples)) for start in range(0, max(1, samples), step))


def added_up(parts: Iterable[Tensor]) -> Float[Tensor, "..."]:
    """The sum of at least one part: a single one as it is (a wider copy holds the same numbers), more in float64."""
    waiting = iter(parts)
    first = next(waiting)
    total: Tensor | None = None
    for part in waiting:
        total = first.double() if total is None else total
        total += part
    return first if total is None else total


def weighted_rows(weights: Float[Tensor, " n"], rows: Float[Tensor, "n p"]) -> Float[Tensor, " p"]:
    """Σ_i w_i·row_i; a row of weight 0 adds exactly 0, even if it is not a number."""
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

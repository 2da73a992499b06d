"""Sums over samples: a few rows at a time in their own precision, these sums in float64.

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

A clip's margin is above SPENT. The bound is reached to a fourth by rows along one coordinate that first add up to a
power of two and then are half a unit of rounding long (`tests/attacks/test_conspiring_rows.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad.gradients.base import zero_rows
from quietgrad.kernels.library import in_use
from quietgrad.kernels.product_sums import product_sums, served

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


def widened(x: Tensor) -> Tensor:
    """At least float32: norms, weights and sums of half-precision gradients are none of them half."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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

"""Runs: how a sum over many samples is rounded, the same in every implementation of it.

A sum of float32 numbers is fast, but its rounding error grows with the number of terms. float64 has no such error here,
but every number would have to be converted. So positions are grouped into *runs*: a run is added up in float32, and
the sums of runs are added up in float64.

    Σ_k x_k = Σ_runs fl32(Σ_{k in run} x_k)        the outer sum in float64

Why runs and not, say, pairwise sums: privacy needs a bound on how far *one* sample can move the result. Runs are fixed
by the number of samples and positions alone, never by their values. Take two batches that differ in one sample, which
is zero in one of them. They differ in the runs of that sample; all others hold the same numbers in the same places and
come to the same bits. So the error that one sample can cause is that of its own runs, whatever the batch.

In whatever order a processor adds the K terms of a run, its float32 sum is off by at most u·Σ_k ‖s_k‖, s_k the partial
sums and u = 2⁻²⁴; a term is in at most K of them. With every row at most C long, two such sums differ, beyond the row
itself, by at most

* formed rows, K = r ≤ RUN: 2u·Σ_{k≤r} k·C = 2.5·10⁻⁴·C;
* products of factors, r samples of t positions, K = r·t ≤ POSITIONS, Σ_t ‖a_t‖‖b_t‖ ≤ κ·C for every sample:
  2u·(r·K − r(r−1)/2)·κ·C, since at worst each sample's terms are one, added before all others. With t = 1 that is
  3.9·10⁻³·C; `longest` says which κ keeps it below SPENT with more positions. A run within one sample is empty in the
  other batch: u·K·κ·C.

**Tensor cores** multiply bfloat16 factors; the products are exact (8 + 8 ≤ 24 bits), their sums are not rounded as IEEE
wants. A core adds k products and the accumulator at once. It aligns all k + 1 terms to the largest exponent, keeps
`bits` ≥ 24 bits of each, cuts the rest off, and cuts the sum to float32. With S = Σ|terms| of such a step, an aligned
term loses less than 2^(1−bits)·max|term| ≤ 2^(1−bits)·S, and the result less than 2⁻²³·S. The accumulator is at most
the sum of all |products| before it, up to these losses. So a run of K products, in ⌈K/k⌉ steps, is off by at most

    ⌈K/k⌉·((k + 1)·2^(1−bits) + 2⁻²³)·Σ|products| = θ·K·u·Σ|products|,    θ = ((k + 1)·2^(25−bits) + 2)/k

for K a multiple of k, to first order in u. θ is 3 for k = 4 and 24 bits, and smaller for more products or bits: THETA
covers them all. The bounds above hold with θ·u in the place of u. Runs of 256 positions would then break SPENT even for
samples of one position; runs of CORE_POSITIONS = 64 keep within it. FP8 is not covered. Which k and bits a card has is
from the literature; no card has confirmed it here.

A clip's margin is above SPENT. The bound is reached to a fourth by rows along one coordinate that first add up to a
power of two and then are half a unit of rounding long.

Checked by: tests/laws/test_law2_floating_point.py, tests/attacks/test_conspiring_rows.py,
tests/laws/test_tensor_cores.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

UNIT = 2.0**-24
"""u, float32's unit of rounding."""

LOST = 2.0**-126
"""The largest square that a processor may take for zero."""

RUN = 64
"""Formed rows that are added up in float32."""

POSITIONS = 256
"""Positions whose products are added up in float32: fewer would cost more passes over the result, which is as large as
the parameter; more would need a wider margin."""

SPENT = 4.5e-3
"""What the roundings of one run may move a sum, in parts of the clip's bound."""


THETA = 3.0
"""How many times coarser than IEEE's a sum on a tensor core may be rounded, for at least 4 products and 24 bits."""

CORE_POSITIONS = 64
"""Positions of a run on tensor cores."""


def core_theta(products: int, bits: int) -> float:
    """Return θ of a core that adds so many products at a time and keeps so many bits of each."""
    return ((products + 1) * 2.0 ** (25 - bits) + 2) / products


def slack(dtype: torch.dtype, terms: int) -> float:
    """Bound how far a squared norm, computed from that many squares in a precision, may lie below the truth."""
    u = float(torch.finfo(dtype).eps) / 2
    return (terms + 4) * u / (1 - (terms + 4) * u)


def runs(samples: int, positions: int, dtype: torch.dtype, most: int = POSITIONS) -> Iterator[slice]:
    """Cut the positions of all samples, side by side, into runs: whole samples, or parts of one.

    Args:
        positions: of each sample.
        most: positions of a run.
    """
    total, each = samples * positions, max(1, positions)
    # float64 needs no runs: its error over any batch that fits into memory is far below the margin of a clip.
    if dtype == torch.float64:
        return iter([slice(0, total)])
    if each <= most:
        # As many whole samples as fit into a run. The cut never depends on values, only on counts that two
        # neighbouring batches share, where a missing sample is a row of zeros.
        step = most // each * each
        return (slice(start, min(start + step, total)) for start in range(0, max(1, total), step))
    # A long sample is cut into parts of nearly the same length, and shares none of them with another sample.
    step = math.ceil(each / math.ceil(each / most))
    return (
        slice(start, min(start + step, first + each))
        for first in range(0, max(1, total), each)
        for start in range(first, first + each, step)
    )


def longest(positions: int, most: int = POSITIONS, theta: float = 1.0) -> float:
    """Return κ, the largest Σ_t ‖a_t‖‖b_t‖/‖G‖ of a sample with which a run of products stays within SPENT.

    Args:
        positions: of a sample.
        most: positions of a run.
        theta: how coarsely a run is rounded, in parts of IEEE's bound.
    """
    together = max(1, most // max(1, positions))
    # The bound of the module docstring, solved for κ. A sample that has its runs for itself leaves them empty in the
    # other batch, so that only one of the two sums is rounded.
    terms = min(max(1, positions) * together, most)
    partial_sums = terms if together == 1 else 2 * (together * terms - together * (together - 1) / 2)
    return SPENT / (theta * UNIT * partial_sums)

"""Which dimension of a layer's output holds the samples: found by a probe, never guessed.

Backward is linear: where a position belongs to sample i alone, its gradient under Σ c_i·loss_i is c_i times its
gradient under Σ loss_i. One more backward with random c therefore proves the layout of every layer at once (and
refutes all of them where samples are mixed).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Samples lie along `dim`, as `[n, m]` (major) or `[m, n]`; m = 1 unless the batch was merged with positions."""

    dim: int
    major: bool
    merged: bool

    def fits(self, shape: torch.Size, n: int) -> bool:
        """Whether a tensor of this shape can be laid out so for n samples."""
        if self.dim >= len(shape):
            return False
        return shape[self.dim] % n == 0 if self.merged else shape[self.dim] == n

    def samples_first(self, x: Tensor, n: int) -> Shaped[Tensor, "n ..."]:
        """`[n, *shape]` where dimension `dim` of shape became m: slice i is what the module saw of sample i."""
        m = x.shape[self.dim] // n
        if self.major:
            return torch.unflatten(x, self.dim, (n, m)).movedim(self.dim, 0)
        return torch.unflatten(x, self.dim, (m, n)).movedim(self.dim + 1, 0)


def candidates(shape: torch.Size, n: int, dims: int) -> Iterator[Layout]:
    """Every layout that the first `dims` dimensions allow, plain ones first."""
    if n == 1 and dims > 0:
        yield Layout(0, major=True, merged=True)
        return
    for dim in range(dims):
        if shape[dim] == n:
            yield Layout(dim, major=True, merged=False)
    for dim in range(dims):
        if shape[dim] > n and shape[dim] % n == 0:
            yield Layout(dim, major=True, merged=True)
            yield Layout(dim, major=False, merged=True)


def scales(n: int, like: Tensor) -> Float[Tensor, " n"]:
    """Random factors in [1, 2) that tell the samples apart; drawn aside so that no global generator moves."""
    draws = torch.rand(n, generator=torch.Generator().manual_seed(n))
    return (1.0 + draws).to(like)


def proven(plain: Tensor, scaled: Tensor, factors: Float[Tensor, " n"], layout: Layout) -> bool:
    """Whether `scaled` is `plain` with sample i multiplied by factors_i under this layout."""
    n = len(factors)
    rows, other = layout.samples_first(plain, n), layout.samples_first(scaled, n)
    some = max(1, COMPARED_AT_ONCE * n // max(1, plain.numel()))
    return all(
        _scaled_rows(*part)
        for part in zip(rows.split(some), other.split(some), factors.to(rows.dtype).split(some), strict=True)
    )


def _scaled_rows(
    rows: Float[Tensor, "k ..."], other: Float[Tensor, "k ..."], factors: Float[Tensor, " k"]
) -> bool:
    rows, other = rows.flatten(1), other.flatten(1)
    expected = factors[:, None] * rows
    finite = expected.isfinite()
    if not torch.equal(finite, other.isfinite()):
        return False
    # A sample whose gradient is not a number tells nothing; the others still decide.
    expected, other = expected.masked_fill(~finite, 0.0), other.masked_fill(~finite, 0.0)
    scale = expected.abs().amax(1, keepdim=True) if rows.shape[1] else expected
    tolerance = 1e-2 if rows.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return bool(((other - expected).abs() <= tolerance * (expected.abs() + scale)).all())


COMPARED_AT_ONCE = 1 << 18
"""Numbers of two gradients that are compared at a time: a probe takes little memory beyond the gradients."""

"""Whose gradient is it? Asked in powers of two, which rounding does not disturb.

Backward is linear: under Σ 2^k_i·loss_i whatever belongs to sample i alone is exactly 2^k_i times what it is under
Σ loss_i, in every precision; what belongs to several samples is no multiple at all. The exponents number the samples,
so that one more backward (a few for large batches) tells the owner of every position.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quietgrad._capture.layout import Layout, Owners

EXPONENT = 30
"""Exponents go from −30 to 30: gradients between 1e-29 and 1e29 neither vanish nor overflow in float32 and bfloat16."""
HALF_EXPONENT = 3
"""Float16 has but 30 binary orders in all, and gradients use most of them."""

COMPARED_AT_ONCE = 1 << 18
"""Numbers of two gradients that are compared at a time: a proof takes little memory beyond the gradients."""


class Code:
    """Numbers n samples by exponents, in a random order and digit by digit."""

    def __init__(self, n: int, *, half: bool) -> None:
        self.n, self.largest = n, HALF_EXPONENT if half else EXPONENT
        self.base = 2 * self.largest + 1
        # Drawn aside, so that no generator of the user's moves; at random, so that no model can be made for it.
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        self._number = torch.randperm(n, generator=generator)

    @property
    def rounds(self) -> int:
        """Backwards that tell all samples apart."""
        return next(r for r in range(1, 64) if self.base**r >= self.n)

    def exponents(self, turn: int) -> Int[Tensor, " n"]:
        """The digit of each sample in this round."""
        digits: Tensor = self._number // self.base**turn % self.base
        return digits - self.largest

    def factors(self, turn: int, like: Tensor) -> Float[Tensor, " n"]:
        return torch.exp2(self.exponents(turn).double()).to(like)

    def samples(self, digits: list[Int[Tensor, " r"]]) -> Int[Tensor, " r"]:
        """From the exponents of every round back to the sample; −1 where there is none of that number."""
        number = sum((digit + self.largest) * self.base**turn for turn, digit in enumerate(digits))
        inverse = torch.full((self.base**self.rounds,), -1)
        inverse[self._number] = torch.arange(self.n)
        return inverse[number]


def matches_layout(plain: Tensor, scaled: Tensor, exponents: Int[Tensor, " n"], layout: Layout) -> bool:
    """Whether `scaled` is `plain` with sample i multiplied by 2^k_i under this layout."""
    n = len(exponents)
    rows, other = layout.samples_first(plain, n), layout.samples_first(scaled, n)
    some = max(1, COMPARED_AT_ONCE * n // max(1, plain.numel()))
    return all(
        bool(_multiples(*part).all())
        for part in zip(rows.split(some), other.split(some), exponents.split(some), strict=True)
    )


def _multiples(
    rows: Float[Tensor, "k ..."], other: Float[Tensor, "k ..."], exponents: Int[Tensor, " k"]
) -> Tensor:
    """Which rows of `other` are 2^k times those of `rows`."""
    rows, other = rows.flatten(1), other.flatten(1)
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    expected, found = torch.ldexp(rows.to(wide), exponents[:, None].to(rows.device)), other.to(wide)
    # A sample whose gradient is not a number tells nothing; the others still decide.
    same = (expected == found) | (~expected.isfinite() & ~found.isfinite())
    if bool(same.all()):
        return same.all(1)
    # Kernels that add in another order (atomics, threads) round differently, by far less than 2⁻¹²; what another
    # sample adds is multiplied by up to 2⁶⁰ against it.
    size = torch.nan_to_num(expected, 0.0, 0.0, 0.0).abs().amax(1, keepdim=True)
    smallest = torch.finfo(rows.dtype).tiny * 2.0**EXPONENT
    tolerance = 2.0**-12 if rows.dtype.itemsize > 2 else 2.0**-5
    return (same | ((found - expected).abs() <= tolerance * size + smallest)).all(1)


@dataclass(frozen=True)
class Probe:
    """A gradient under the plain losses and under each round of a code."""

    plain: Tensor
    scaled: list[Tensor]
    dims: int

    def owners(self, code: Code) -> Owners | None:
        """The sample of every position, if each has one; positions without a gradient belong to nobody."""
        rows = _rows(self.plain, self.dims)
        if rows.numel() == 0:
            return Owners(self.dims, torch.full((code.n, 1), -1))
        largest = torch.nan_to_num(rows, 0.0, 0.0, 0.0).abs().argmax(1, keepdim=True)
        some = torch.nan_to_num(rows.gather(1, largest)[:, 0], 0.0, 0.0, 0.0) != 0
        digits = []
        for turn in self.scaled:
            other = _rows(turn, self.dims)
            ratio = other.gather(1, largest)[:, 0].double() / rows.gather(1, largest)[:, 0].double()
            digit = torch.nan_to_num(ratio.abs().log2().round(), 0.0, 99.0, -99.0).long()
            digit = digit.masked_fill(~some, 0)
            if bool((digit.abs() > code.largest).any()) or not bool(_multiples(rows, other, digit).all()):
                return None
            digits.append(digit)
        sample = code.samples(digits)
        if bool((sample[some] < 0).any()):
            return None
        return Owners(self.dims, _places(sample.masked_fill(~some, -1), code.n))


def _rows(x: Tensor, dims: int) -> Float[Tensor, "r f"]:
    """The positions and what they hold; a position may be a single number."""
    return x.reshape(x.shape[:dims].numel(), x.shape[dims:].numel())


def _places(sample: Int[Tensor, " r"], n: int) -> Int[Tensor, "n m"]:
    """The positions of each sample, filled up with −1."""
    owned = sample >= 0
    position, owner = owned.nonzero()[:, 0], sample[owned]
    order = owner.argsort(stable=True)
    position, owner = position[order], owner[order]
    counts = torch.bincount(owner, minlength=n)
    rank = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    places = torch.full((n, max(1, int(counts.max()))), -1)
    places[owner, rank] = position
    return places

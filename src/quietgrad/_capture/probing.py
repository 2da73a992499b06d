"""Find the sample that owns each gradient entry, by scaling the losses with powers of two.

Backward is linear. Under Σ_i 2^k_i·loss_i, an entry that belongs to sample i alone is exactly 2^k_i times what it is
under Σ_i loss_i: multiplying by a power of two changes the exponent and rounds nothing, in every precision. An entry
that belongs to several samples is no such multiple. The exponents number the samples, so that comparing two gradients
names the owner of every entry.

Worked example with n = 3 samples and exponents k = (−1, 0, 1):

    entry of Σ loss          0.3     0.5     0.4
    entry of Σ 2^k·loss      0.15    0.5     0.7
    ratio                    2⁻¹     2⁰      1.75
    owner                    sample 0  sample 1  none: 0.4 = 0.1 + 0.3 of samples 1 and 2, 0.7 = 0.1 + 2·0.3

Exponents have few values, so a batch larger than their number is counted in digits, one more backward for each.

Checked by: tests/capture/test_graph_analysis.py, tests/capture/test_probing.py, tests/attacks/test_late_mixing.py
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quietgrad._capture.call import Call
from quietgrad._capture.layout import Layout, Owners, Placement, candidates
from quietgrad._capture.mask_probing import gradients_under, owners, position_rows, probe_masks
from quietgrad._capture.output_gradients import OutputGradient
from quietgrad._gradients.blocks import pack

EXPONENT = 30
"""Exponents go from −30 to 30: gradients between 1e-29 and 1e29 neither vanish nor overflow in float32 and bfloat16."""
HALF_EXPONENT = 3
"""Float16 has but 30 binary orders in all, and gradients use most of them."""

COMPARED_AT_ONCE = 1 << 18
"""Numbers of two gradients that are compared at a time: comparing takes little memory beyond the gradients."""
PROBED_AT_ONCE = 1 << 24
"""Bytes of gradients that may always be probed together: 16 MB are small beside any model that needs splitting."""
MOST_PROBES = 6
"""Parts that a larger probe is split into. Each part has backwards of its own, and holds a sixth of the second
gradients for each digit at a time: that is below the peak of the step itself."""


def probe_layouts(losses: Float[Tensor, " n"], gradients: list[OutputGradient]) -> list[Call]:
    """Set the layout of each gradient that splits into samples.

    Regular layouts are tried first. Where none fits, every position gets its owner. Both take one more backward for
    each digit: one for up to 61 samples, two for up to 3,721.
    Powers of two may over- or underflow on the way, if a record is scaled by e^80. So they confirm layouts, but what
    they do not confirm is decided by leaving out losses (`mask_probing`), which is exact at every scale.

    Returns:
        the calls in which some position belongs to several samples, though the output has room for all of them.
    """
    code = SampleCode(len(losses), half=any(g.gradient.dtype == torch.float16 for g in gradients))
    for group in _split(gradients):
        # All digits are needed to confirm even a regular layout: samples that share their first digit have the same
        # factor there, and a mixture of just these would go unseen.
        digits = [_scaled_gradients(losses, group, code, digit) for digit in range(code.digits)]
        for index, gradient in enumerate(group):
            gradient.layout = _find_layout(gradient, [scaled[index] for scaled in digits], code)
        undecided = [gradient for gradient in group if gradient.layout is None]
        if undecided:
            probe_masks(losses, undecided)
    return [g.call for g in gradients if g.layout is None and may_hold_samples(g, code.n)]


def may_hold_samples(gradient: OutputGradient, n: int) -> bool:
    """Ask whether an output has room for all samples, so that one without a layout may mix them."""
    return any(candidates(gradient.output.shape, n, gradient.sample_dims))


def layout_of_rows(rows: Float[Tensor, "n ..."], dims: int) -> Layout | Owners | None:
    """Find the layout of an output from the gradient of each sample: a position belongs to the only one that has any.

    Returns:
        None if several samples have a gradient at one position.

    Checked by: tests/attacks/test_not_a_number_of_others.py
    """
    n, shape = len(rows), rows.shape[1:]
    if shape.numel() == 0:
        return Owners(dims, torch.full((n, 1), -1))
    reached = (rows != 0).reshape(n, shape[:dims].numel(), -1).any(2)
    # One position with two samples is enough: its row of the weight gradient could not be divided among them.
    if bool((reached.sum(0) > 1).any()):
        return None
    owner = torch.where(reached.any(0), reached.int().argmax(0), -1).cpu()
    # A regular layout is preferred to a list of owners, because `samples_first` is then a view and not a copy. A
    # position without gradient fits to every sample.
    for layout in candidates(shape, n, dims):
        parts = layout.samples_first(owner.reshape(shape[:dims]), n).flatten(1)
        if bool(((parts == torch.arange(n)[:, None]) | (parts == -1)).all()):
            return layout
    return owners(dims, owner, n)


def _find_layout(gradient: OutputGradient, scaled: list[Tensor], code: SampleCode) -> Placement | None:
    """Find a regular layout that explains every digit, or else the owner of each position."""
    for layout in candidates(gradient.output.shape, code.n, gradient.sample_dims):
        if all(
            matches_layout(gradient.gradient, found, code.exponents(digit), layout)
            for digit, found in enumerate(scaled)
        ):
            return layout
    # A mask or an index leaves positions in no regular order.
    return Probe(gradient.gradient, scaled, gradient.sample_dims).find_owners(code)


def _scaled_gradients(
    losses: Tensor, gradients: list[OutputGradient], code: SampleCode, digit: int
) -> list[Tensor]:
    """Run one backward of the losses scaled by this digit of the samples' numbers."""
    return gradients_under(losses, gradients, code.factors(digit, losses))


def _split(gradients: list[OutputGradient]) -> Iterator[list[OutputGradient]]:
    """Split the gradients: to probe all at once would be the peak of the whole training's memory."""

    def size(gradient: OutputGradient) -> int:
        return gradient.gradient.numel() * gradient.gradient.element_size()

    return pack(gradients, size, max(PROBED_AT_ONCE, sum(map(size, gradients)) // MOST_PROBES))


class SampleCode:
    """Number n samples by exponents, in a random order and digit by digit."""

    def __init__(self, n: int, *, half: bool) -> None:
        self.n, self.largest = n, HALF_EXPONENT if half else EXPONENT
        self.base = 2 * self.largest + 1
        # A generator of its own, so that none of the user's moves; seeded at random, so that no model can be made to
        # fit the numbers.
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        # Few samples get numbers from the whole range: the further apart two factors are, the smaller a share shows.
        self._number = torch.randperm(max(n, self.base), generator=generator)[:n]

    @property
    def digits(self) -> int:
        """How many digits a sample's number has, which is how many backwards name all samples."""
        return next(digits for digits in range(1, 64) if self.base**digits >= self.n)

    def exponents(self, digit: int) -> Int[Tensor, " n"]:
        """Return this digit of each sample's number, as an exponent around zero."""
        values: Tensor = self._number // self.base**digit % self.base
        return values - self.largest

    def factors(self, digit: int, like: Tensor) -> Float[Tensor, " n"]:
        """Return the powers of two that scale the losses."""
        return torch.exp2(self.exponents(digit).double()).to(like)

    def samples(self, exponents: list[Int[Tensor, " r"]]) -> Int[Tensor, " r"]:
        """Return the sample with these exponents in every digit; −1 where there is none of that number."""
        number = sum((value + self.largest) * self.base**digit for digit, value in enumerate(exponents))
        inverse = torch.full((self.base**self.digits,), -1)
        inverse[self._number] = torch.arange(self.n)
        return inverse[number]


def matches_layout(plain: Tensor, scaled: Tensor, exponents: Int[Tensor, " n"], layout: Layout) -> bool:
    """Ask whether `scaled` is `plain` with sample i multiplied by 2^k_i under this layout."""
    n = len(exponents)
    rows, other = layout.samples_first(plain, n), layout.samples_first(scaled, n)
    some = max(1, COMPARED_AT_ONCE * n // max(1, plain.numel()))
    return all(
        bool(_are_multiples(*part).all())
        for part in zip(rows.split(some), other.split(some), exponents.split(some), strict=True)
    )


def _are_multiples(
    rows: Float[Tensor, "k ..."], other: Float[Tensor, "k ..."], exponents: Int[Tensor, " k"]
) -> Tensor:
    """Ask of each row of `other` whether it is 2^k times that of `rows`, and no number was lost in between."""
    rows, other = rows.flatten(1), other.flatten(1)
    if rows.numel() == 0:
        return torch.ones(len(rows), dtype=torch.bool)
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    # `ldexp` changes the exponent alone. It is compared in float32 at least: a float16 product could overflow here
    # though neither gradient did.
    expected, found = torch.ldexp(rows.to(wide), exponents[:, None].to(rows.device)), other.to(wide)
    # A sample whose gradient is not a number tells nothing; the others still decide.
    absent = ~rows.isfinite()
    same = (expected == found) & expected.isfinite() | absent
    size = torch.nan_to_num(expected, 0.0, 0.0, 0.0).abs().amax(1, keepdim=True)
    # A row that vanished says nothing, and so does not confirm anything.
    kept = (size >= torch.finfo(rows.dtype).tiny) | (rows.masked_fill(absent, 0) == 0).all(1, keepdim=True)
    if bool(same.all()):
        return kept[:, 0]
    # Kernels that add in another order (atomics, threads) round differently, by far less than 2⁻¹². What another
    # sample adds has another factor, up to 2⁶⁰ times as large.
    tolerance = 2.0**-12 if rows.dtype.itemsize > 2 else 2.0**-5
    return (same | ((found - expected).abs() <= tolerance * size)).all(1) & kept[:, 0]


@dataclass(frozen=True)
class Probe:
    """A gradient under the plain losses, and under those scaled by each digit of a code."""

    plain: Tensor
    scaled: list[Tensor]
    dims: int

    def find_owners(self, code: SampleCode) -> Owners | None:
        """Find the sample of every position, or None if a position has several; one of zeros belongs to nobody.

        The largest number of a position suggests an exponent, and all of its numbers have to confirm it.
        """
        rows = position_rows(self.plain, self.dims)
        if rows.numel() == 0:
            return Owners(self.dims, torch.full((code.n, 1), -1))
        # The largest entry has most bits to spare before it underflows, so its ratio is the most reliable one.
        largest = torch.nan_to_num(rows, 0.0, 0.0, 0.0).abs().argmax(1, keepdim=True)
        some = torch.nan_to_num(rows.gather(1, largest)[:, 0], 0.0, 0.0, 0.0) != 0
        digits = []
        for scaled in self.scaled:
            other = position_rows(scaled, self.dims)
            ratio = other.gather(1, largest)[:, 0].double() / rows.gather(1, largest)[:, 0].double()
            # Rounding to a whole exponent only guesses. The comparison that follows tests this guess on every entry
            # of the position, so an entry with a ratio between two powers, as of two samples, is found there.
            digit = torch.nan_to_num(ratio.abs().log2().round(), 0.0, 99.0, -99.0).long()
            digit = digit.masked_fill(~some, 0)
            if bool((digit.abs() > code.largest).any()) or not bool(_are_multiples(rows, other, digit).all()):
                return None
            digits.append(digit)
        sample = code.samples(digits)
        if bool((sample[some] < 0).any()):
            return None
        return owners(self.dims, sample.masked_fill(~some, -1), code.n)

"""Find the sample that owns each gradient entry, by leaving out losses.

Powers of two (`probing`) over- or underflow if a record is scaled by e^±80 on the way, and whether they confirm a
layout then depends on that record. Leaving out losses is exact at every scale: under Σ_i m_i·loss_i with m_i = 0 or 1,
an entry that belongs to sample i alone is exactly what it is under Σ_i loss_i, or exactly zero.

Each sample gets a code word of m digits, half of them ones, and each digit is a backward. No word's ones are all among
another's. So for samples a and b there is a digit that leaves out a alone, and one that leaves out b alone. There an
entry of both is neither zero nor what it was, however small one share is beside the other:

    sample          0    1    2    3         entry of samples 1 and 2:  0.1 + 0.3 = 0.4
    first digit     1    1    1    0                                    0.4
    second digit    1    0    0    1                                    0
    third digit     0    1    0    1                                    0.1            belongs to several
    fourth digit    0    0    1    0                                    0.3            belongs to several

The number of words with half of m digits is C(m, m/2), so that 70 samples need 8 backwards and 924 need 12.

Checked by: tests/capture/test_probing.py, tests/attacks/test_extreme_scales.py
"""

from __future__ import annotations

import math
import secrets
from itertools import combinations, count, islice

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from quietgrad._capture.layout import Layout, Owners, Placement, candidates
from quietgrad._capture.output_gradients import OutputGradient, gradients_at

ROUNDINGS = 4
"""Units in the last place by which kernels that add in another order (atomics) may differ; zeros add up to zero."""


def probe_masks(losses: Float[Tensor, " n"], gradients: list[OutputGradient]) -> None:
    """Set the layout of each gradient that splits into samples."""
    code = MaskCode(len(losses))
    probes = [MaskProbe(gradient, code.n) for gradient in gradients]
    for digit in range(code.digits):
        kept = code.kept(digit)
        for probe, found in zip(probes, gradients_under(losses, gradients, kept.to(losses)), strict=True):
            probe.add(found, kept)
    for gradient, probe in zip(gradients, probes, strict=True):
        gradient.layout = probe.layout(code)


def gradients_under(losses: Tensor, gradients: list[OutputGradient], factors: Tensor) -> list[Tensor]:
    """Run one more backward, of the losses times these factors."""
    arrived = gradients_at(losses, [g.output.edge for g in gradients], factors, keep_graph=True)
    return [
        torch.zeros_like(g.gradient) if found is None else found.reshape(g.output.shape)
        for g, found in zip(gradients, arrived, strict=True)
    ]


class MaskCode:
    """Give each of n samples a word in which half of the digits are ones, in a random order."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.digits = next(m for m in count(2) if math.comb(m, m // 2) >= n)
        chosen = islice(combinations(range(self.digits), self.digits // 2), n)
        words = torch.tensor([sum(1 << digit for digit in ones) for ones in chosen])
        # A generator of its own, seeded at random, as that of powers of two.
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        self._words = words[torch.randperm(n, generator=generator)]

    def kept(self, digit: int) -> Bool[Tensor, " n"]:
        """Return whose losses this digit keeps."""
        return (self._words >> digit & 1).bool()

    def samples(self, words: Int[Tensor, " r"]) -> Int[Tensor, " r"]:
        """Return the sample of each word; −1 where there is none."""
        # A table from word to sample. With 14 digits it has 16384 entries for up to 3432 samples.
        inverse = torch.full((1 << self.digits,), -1)
        inverse[self._words] = torch.arange(self.n)
        return inverse[words]


class MaskProbe:
    """What is still possible for one gradient: regular layouts, and the word of each position's owner."""

    def __init__(self, gradient: OutputGradient, n: int) -> None:
        self._plain, self._dims = gradient.gradient, gradient.sample_dims
        self._possible: list[Layout] = list(candidates(gradient.output.shape, n, self._dims))
        rows = position_rows(self._plain, self._dims)
        self._some = (torch.nan_to_num(rows, 0.0, 0.0, 0.0) != 0).any(1).cpu()
        self._words = torch.zeros(len(rows), dtype=torch.long)
        self._digit = 0
        self._splits = True

    def add(self, found: Tensor, kept: Bool[Tensor, " n"]) -> None:
        """Take the gradient under the losses that the next digit keeps."""
        n = len(kept)
        # Layouts drop out digit by digit and never come back. One that survives all digits explains every gradient
        # seen.
        self._possible = [
            layout
            for layout in self._possible
            if _are_kept(layout.samples_first(self._plain, n), layout.samples_first(found, n), kept)
        ]
        rows, other = position_rows(self._plain, self._dims), position_rows(found, self._dims)
        there = (torch.nan_to_num(other, 0.0, 0.0, 0.0) != 0).any(1).cpu()
        # The same is asked without any layout: a position is either unchanged, and then its owner was kept, or zero.
        # Anything in between shows two owners.
        self._splits = self._splits and _are_kept(rows, other, there)
        self._words |= there.long() << self._digit
        self._digit += 1

    def layout(self, code: MaskCode) -> Placement | None:
        """Return the first regular layout that is left, or the owner of every position; None if some has several."""
        if self._possible:
            return self._possible[0]
        sample = code.samples(self._words)
        if not self._splits or bool((sample[self._some] < 0).any()):
            return None
        return owners(self._dims, sample.masked_fill(~self._some, -1), code.n)


def _are_kept(rows: Float[Tensor, "k ..."], other: Float[Tensor, "k ..."], kept: Bool[Tensor, " k"]) -> bool:
    """Ask whether each row of `other` is that of `rows`, or zero where it is not kept."""
    rows, other, kept = rows.flatten(1), other.flatten(1), kept[:, None].to(rows.device)
    # A gradient that is not a number tells nothing.
    same = (other == rows.where(kept, 0)) | ~rows.isfinite()
    if bool(same.all()):
        return True
    size = torch.nan_to_num(rows, 0.0, 0.0, 0.0).abs().amax(1, keepdim=True)
    # Only where the sample was kept may anything be rounded. Where it was left out nothing but zero will do, since
    # the smallest share of another sample must be seen there.
    near = (rows - other).abs() <= ROUNDINGS * torch.finfo(rows.dtype).eps * size
    return bool((same | (kept & near)).all())


def position_rows(x: Tensor, dims: int) -> Shaped[Tensor, "r f"]:
    """Flatten the positions, and what each of them holds."""
    return x.reshape(x.shape[:dims].numel(), x.shape[dims:].numel())


def owners(dims: int, sample: Int[Tensor, " r"], n: int) -> Owners:
    """List the positions of each sample, filled up with −1; those of sample −1 belong to nobody."""
    owned = sample >= 0
    position, owner = owned.nonzero()[:, 0], sample[owned]
    order = owner.argsort(stable=True)
    position, owner = position[order], owner[order]
    counts = torch.bincount(owner, minlength=n)
    # `position` is sorted by owner, so the rank of an entry within its sample is its place in the sorted list minus
    # the place where the sample begins.
    rank = torch.arange(len(owner)) - (counts.cumsum(0) - counts)[owner]
    places = torch.full((n, max(1, int(counts.max()))), -1)
    places[owner, rank] = position
    return Owners(dims, places)

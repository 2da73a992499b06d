"""The Mallows selector of GIP, drawn exactly: noisy top-k of every group of coordinates.

    Pr[S] ∝ exp(−θ·|S − S*|₁),   Pr[i swaps] ∝ C(K, i)·C(ℓ − K, i)·e^{−2θi}

S* are the K largest of a group's ℓ coordinates. The number of swaps is drawn first, its probabilities right to 2⁻⁶³,
then i random members change places with i random others; all groups at once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64, Real
from torch import Tensor

from quietgrad.methods.gip.mallows_event import MallowsSelection


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """p coordinates in groups of ℓ consecutive ones; what is left over is a smaller group of its own.

    A padded last group would select among coordinates that do not exist; a group of its true size is exact.

    Args:
        coordinates: p.
        group_size: ℓ.
    """

    coordinates: int
    group_size: int

    def __post_init__(self) -> None:
        if self.coordinates < 1:
            raise ValueError(
                f"Expected coordinates >= 1, got {self.coordinates}. Pass the model to be trained."
            )
        if self.group_size < 1:
            raise ValueError(f"Expected group_size >= 1, got {self.group_size}.")

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """(number of groups, their size), of the whole groups and of the rest."""
        whole, rest = divmod(self.coordinates, self.group_size)
        return tuple(shape for shape in ((whole, self.group_size), (1, rest)) if shape[0] and shape[1])

    def selections(self, theta: float, keep: float) -> tuple[MallowsSelection, ...]:
        """Return the events of a choice in every group."""
        return tuple(
            MallowsSelection(theta=theta, group_size=size, kept=kept_of(size, keep), groups=groups)
            for groups, size in self.shapes
        )

    @property
    def draws(self) -> int:
        """Random words that `select` takes."""
        return sum(groups * (size + 1) for groups, size in self.shapes)

    def select(
        self, values: Real[Tensor, " p"], *, theta: float, keep: float, bits: Int64[Tensor, " draws"]
    ) -> Bool[Tensor, " p"]:
        """One draw of the selector: which coordinates are released.

        Args:
            bits: random words of 63 bits.
        """
        parts, start, used = [], 0, 0
        for groups, size in self.shapes:
            magnitudes = values[start : start + groups * size].view(groups, size).abs()
            words = bits[used : used + groups * (size + 1)]
            coins, keys = words[:groups], words[groups:].view(groups, size)
            parts.append(mallows(magnitudes, kept_of(size, keep), theta, coins, keys).flatten())
            start, used = start + groups * size, used + groups * (size + 1)
        return torch.cat(parts)


def kept_of(size: int, keep: float) -> int:
    """K = keep·ℓ, rounded, at least 1."""
    return max(1, round(keep * size))


@functools.lru_cache(maxsize=64)
def swap_limits(size: int, kept: int, theta: float) -> Int64[Tensor, " swaps"]:
    """⌊2⁶³·Pr[at most i swaps]⌋ for every i but the last, by w_{i+1} = w_i·(K − i)(ℓ − K − i)/(i + 1)²·e^{−2θ}."""
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 50, MAX_EMAX, MIN_EMIN
        falling, weights = (-2 * Decimal(theta)).exp(), [Decimal(1)]
        for i in range(min(kept, size - kept)):
            weights.append(weights[-1] * ((kept - i) * (size - kept - i)) / (i + 1) ** 2 * falling)
        total = sum(weights)
        limits = [min(int(part / total * 2**63), 2**63 - 1) for part in accumulate(weights[:-1])]
    return torch.tensor(limits, dtype=torch.int64)


def mallows(
    magnitudes: Real[Tensor, "g size"],
    kept: int,
    theta: float,
    coins: Int64[Tensor, " g"],
    keys: Int64[Tensor, "g size"],
) -> Bool[Tensor, "g size"]:
    """Draw one set per group.

    Args:
        magnitudes: the K largest of each row are the true set.
        coins: random words that decide the number of swaps.
        keys: random words whose order decides who is swapped.
    """
    size = magnitudes.shape[1]
    largest = np.argpartition(magnitudes.numpy(), size - kept, axis=1)[:, size - kept :]
    members = torch.zeros(magnitudes.shape, dtype=torch.bool).scatter_(1, torch.from_numpy(largest), True)
    if kept == size:
        return members
    swaps = torch.searchsorted(swap_limits(size, kept, theta), coins.contiguous(), right=True)
    return members ^ _lowest(keys, members, swaps) ^ _lowest(keys, ~members, swaps)


def _lowest(
    keys: Int64[Tensor, "g size"], members: Bool[Tensor, "g size"], count: Int[Tensor, " g"]
) -> Bool[Tensor, "g size"]:
    """In each row, the `count` members of lowest key."""
    own = keys.masked_fill(~members, torch.iinfo(torch.int64).max)
    # numpy's sort is vectorised; torch's takes twenty times as long
    ordered = torch.from_numpy(np.sort(own.numpy(), axis=1))
    threshold = ordered.gather(1, (count - 1).clamp_min(0)[:, None])
    return (own <= threshold) & (count > 0)[:, None]

"""The Mallows selector of GIP, drawn exactly: noisy top-k of every group of coordinates.

    Pr[S] ∝ exp(−θ·|S − S*|₁),   Pr[i swaps] ∝ C(K, i)·C(ℓ − K, i)·e^{−2θi}

S* are the K largest of a group's ℓ coordinates. The number of swaps is drawn first, in log space, then i random members
change places with i random others; all groups at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray
from scipy import special
from torch import Tensor

from quietgrad.accounting.combinatorics import log_choose
from quietgrad.accounting.events import MallowsSelection


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
        """What the accountant is told."""
        return tuple(
            MallowsSelection(theta=theta, group_size=size, kept=kept_of(size, keep), groups=groups)
            for groups, size in self.shapes
        )

    @property
    def draws(self) -> int:
        """Random numbers that `select` takes."""
        return sum(groups * (size + 1) for groups, size in self.shapes)

    def select(
        self, values: Float[Tensor, " p"], *, theta: float, keep: float, normals: Float64[Tensor, " draws"]
    ) -> Bool[Tensor, " p"]:
        """One draw of the selector: which coordinates are released."""
        parts, start, used = [], 0, 0
        for groups, size in self.shapes:
            magnitudes = values[start : start + groups * size].view(groups, size).abs()
            draws = normals[used : used + groups * (size + 1)]
            uniforms, keys = torch.special.ndtr(draws[:groups]), draws[groups:].view(groups, size)
            parts.append(mallows(magnitudes, kept_of(size, keep), theta, uniforms, keys).flatten())
            start, used = start + groups * size, used + groups * (size + 1)
        return torch.cat(parts)


def kept_of(size: int, keep: float) -> int:
    """K = keep·ℓ, rounded, at least 1."""
    return max(1, round(keep * size))


def swap_probabilities(size: int, kept: int, theta: float) -> Float64[ndarray, " swaps"]:
    """Equation 11: the distribution of i, half the L1 distance between the drawn set and the true one."""
    i = np.arange(min(kept, size - kept) + 1)
    weights = log_choose(kept, i) + log_choose(size - kept, i) - 2.0 * theta * i
    chances: Float64[ndarray, " swaps"] = np.exp(weights - special.logsumexp(weights))
    return chances


def mallows(
    magnitudes: Float[Tensor, "g size"],
    kept: int,
    theta: float,
    uniforms: Float64[Tensor, " g"],
    keys: Float64[Tensor, "g size"],
) -> Bool[Tensor, "g size"]:
    """Draw one set per group.

    Args:
        magnitudes: the K largest of each row are the true set.
        uniforms: decide the number of swaps.
        keys: any continuous independent draws; their order decides who is swapped.
    """
    size = magnitudes.shape[1]
    largest = np.argpartition(magnitudes.numpy(), size - kept, axis=1)[:, size - kept :]
    members = torch.zeros(magnitudes.shape, dtype=torch.bool).scatter_(1, torch.from_numpy(largest), True)
    if kept == size:
        return members
    swaps = draw_swaps(uniforms, swap_probabilities(size, kept, theta))
    return members ^ _lowest(keys, members, swaps) ^ _lowest(keys, ~members, swaps)


def draw_swaps(uniforms: Float64[Tensor, " g"], chances: Float64[ndarray, " swaps"]) -> Int[Tensor, " g"]:
    """Inverse of the distribution function."""
    edges = torch.from_numpy(np.cumsum(chances)[:-1])
    return torch.searchsorted(edges, uniforms.contiguous())


def _lowest(
    keys: Float64[Tensor, "g size"], members: Bool[Tensor, "g size"], count: Int[Tensor, " g"]
) -> Bool[Tensor, "g size"]:
    """In each row, the `count` members of lowest key."""
    own = keys.masked_fill(~members, torch.inf)
    ordered = torch.from_numpy(
        np.sort(own.numpy(), axis=1)
    )  # vectorised; torch's sort takes twenty times as long
    threshold = ordered.gather(1, (count - 1).clamp_min(0)[:, None])
    return (own <= threshold) & (count > 0)[:, None]

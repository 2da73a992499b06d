"""Centre and principal directions, from public rows or from second moments that were released."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

TINY = 1e-9
"""Variances below this part of the largest one are rounding."""


@dataclass(frozen=True)
class Moments:
    """A centre, orthonormal directions (columns) and the variance of the rows along each, largest first.

    Formal guarantee: a function of public rows or of releases, so using it costs nothing more.
    """

    mean: Float[Tensor, " d"]
    directions: Float[Tensor, "d k"]
    variances: Float[Tensor, " k"]

    def centred_at(self, mean: Float[Tensor, " d"]) -> Moments:
        """The same directions around another centre."""
        return Moments(mean, self.directions, self.variances)


def moments_of(rows: Float[Tensor, "m d"], most: int) -> Moments:
    """At most `most` principal directions of public rows; m rows have m − 1."""
    mean = rows.mean(0)
    centred = (rows - mean).double()
    few = len(rows) <= rows.shape[1]
    values, vectors = principal((centred @ centred.T if few else centred.T @ centred) / len(rows))
    keep = min(most, int((values > TINY * values[:1]).sum()))
    values, vectors = values[:keep], vectors[:, :keep]
    if few:
        vectors = centred.T @ vectors / (values * len(rows)).sqrt()
    return Moments(mean, vectors.to(rows.dtype), values.to(rows.dtype))


def moments_from_second(
    mean: Float[Tensor, " d"], second: Float[Tensor, "d d"], std: float, most: int
) -> Moments:
    """Directions of a released second-moment matrix with noise of `std` on each entry.

    Half of matrix and transpose keeps the signal and has noise of std/√2 off the diagonal, whose largest eigenvalue is
    about std·√(2d): smaller ones tell nothing of the variance and are lifted to it.
    """
    values, vectors = principal(((second + second.T) / 2).double())
    values = values.clamp_min(max(std * math.sqrt(2 * len(second)), TINY))
    return Moments(mean, vectors[:, :most].to(mean.dtype), values[:most].to(mean.dtype))


def moments_from_diagonal(
    mean: Float[Tensor, " d"], squares: Float[Tensor, " d"], std: float, most: int
) -> Moments:
    """The coordinates of the largest released mean squares, those below the noise lifted to it."""
    values, order = squares.clamp_min(max(std, TINY)).sort(descending=True)
    chosen = order[:most]
    directions = mean.new_zeros(len(mean), len(chosen))
    directions[chosen, torch.arange(len(chosen))] = 1.0
    return Moments(mean, directions, values[:most])


def moments_from_kronecker(
    mean: Float[Tensor, " d"],
    channels: Float[Tensor, "c c"],
    positions: Float[Tensor, "p p"],
    std: float,
    most: int,
) -> Moments:
    """Products of channel and position directions, the `most` largest by the product of their eigenvalues."""
    mean_c, mean_p = mean.new_zeros(len(channels)), mean.new_zeros(len(positions))
    a = moments_from_second(mean_c, channels, std, len(channels))
    b = moments_from_second(mean_p, positions, std, len(positions))
    products = torch.outer(a.variances, b.variances).flatten()
    values, order = products.sort(descending=True)
    chosen = order[:most]
    left, right = a.directions[:, chosen // len(positions)], b.directions[:, chosen % len(positions)]
    directions = torch.einsum("ck,pk->cpk", left, right).flatten(0, 1)
    return Moments(mean, directions, values[:most])


def principal(matrix: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Eigenvalues, largest first, and their vectors as columns."""
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0), vectors.flip(1)

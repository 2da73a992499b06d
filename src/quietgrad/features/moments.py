"""Centre and principal directions, from public rows or released moments."""

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
    """A centre, orthonormal directions (columns) and variances, largest first.

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


def moments_from_second(mean: Float[Tensor, " d"], second: Float[Tensor, "d d"], std: float) -> Moments:
    """Return all directions of a released second-moment matrix.

    The matrix has noise of `std` on each entry.

    Half of matrix and transpose keeps the signal and halves the noise; eigenvalues that noise alone would have tell
    nothing of the variance and are lifted to the largest of these. So the order of their directions is chance, and none
    is left out for it.
    """
    values, vectors = principal(((second + second.T) / 2).double())
    values = values.clamp_min(max(noise_eigenvalue(std, len(second)), TINY))
    return Moments(mean, vectors.to(mean.dtype), values.to(mean.dtype))


def moments_standing_out(second: Float[Tensor, "d d"], std: float) -> Moments:
    """Return the directions of a released matrix M that exceed its noise.

    M has noise of `std` on each entry, which exceeds most directions.

        S = Σ ℓ vvᵀ over eigenvalues λ + m with λ > e,   ℓ = (λ + √(λ² − e²))/2,   M ≈ S + diag(max(M − S, std))

    with m the median eigenvalue and e the largest of noise alone: ℓ is what λ was before noise lifted it
    (Benaych-Georges, Nadakuditi 2011). The diagonal of the rest has d numbers, not d², and is known far better than
    directions are. Unlike in `moments_from_second` the spectrum stays as steep as it is, so that rescaling tells.
    """
    matrix = ((second + second.T) / 2).double()
    edge = noise_eigenvalue(std, len(matrix))
    values, vectors = principal(matrix)
    above = values - values.median()
    seen = above > edge
    lengths = (above[seen] + (above[seen] ** 2 - edge**2).sqrt()) / 2
    leading = vectors[:, seen] * lengths @ vectors[:, seen].T
    rest = (matrix - leading).diagonal().clamp_min(max(std, TINY))
    values, vectors = principal(leading + rest.diag())
    return Moments(second.new_zeros(len(second)), vectors.to(second.dtype), values.to(second.dtype))


def noise_eigenvalue(std: float, width: int) -> float:
    """Estimate the largest eigenvalue of a symmetric matrix of noise.

    The mean of a matrix of noise and its transpose: std/√2 off the diagonal.
    """
    return std * math.sqrt(2 * width)


def shrunk(mean: Float[Tensor, " d"], std: float) -> Float[Tensor, " d"]:
    """Shrink a released mean by the length that noise of `std` has added.

    m·max(0, 1 − d·std²/‖m‖²)   (James, Stein 1961)

    Zero is the middle of a table's bounds. A mean that is mostly noise would move every row the same random way.
    """
    squared = float(mean.double().square().sum())
    return mean * max(0.0, 1 - len(mean) * std**2 / squared) if squared > 0 else mean


def moments_from_diagonal(
    mean: Float[Tensor, " d"], squares: Float[Tensor, " d"], std: float, most: int
) -> Moments:
    """Return the coordinates of the largest released mean squares.

    Squares below the noise are raised to it.
    """
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
    """Return the `most` largest products of channel and position directions."""
    mean_c, mean_p = mean.new_zeros(len(channels)), mean.new_zeros(len(positions))
    a = moments_from_second(mean_c, channels, std)
    b = moments_from_second(mean_p, positions, std)
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

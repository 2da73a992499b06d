"""All products of features, along the directions of public rows.

A linear head on the products of all pairs of features beside the features themselves would need their square in
dimensions. Along the principal directions of m public rows in that space it needs the likeness to each of them only:

    k(u, v) = (1 + ⟨u, v⟩)²,   rows at unit length around their centre

Schölkopf, Smola, Müller: Nonlinear component analysis as a kernel eigenvalue problem (1998).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.features.encoders import unit
from quietgrad.features.moments import TINY, principal
from quietgrad.features.pipeline import with_constant


@dataclass(frozen=True)
class QuadraticMoments:
    """Principal directions of public rows among products of features.

    Formal guarantee: a function of public rows (and of a released mean), so using it costs nothing more.

    Args:
        mean: the centre of the records.
        landmarks: the public rows, at unit length around their own centre.
        weights: of their likenesses, one column for each direction.
    """

    mean: Float[Tensor, " d"]
    landmarks: Float[Tensor, "m d"]
    weights: Float[Tensor, "m k"]
    variances: Float[Tensor, " k"]

    def centred_at(self, mean: Float[Tensor, " d"]) -> QuadraticMoments:
        """The same directions for records around another centre."""
        return replace(self, mean=mean)


def quadratic_moments_of(rows: Float[Tensor, "m d"], most: int) -> QuadraticMoments:
    """At most `most` principal directions; m rows have m − 1."""
    mean = rows.mean(0)
    landmarks = unit(rows - mean)
    likeness = _squared(landmarks.double(), landmarks.double())
    centred = likeness - likeness.mean(0) - likeness.mean(1, keepdim=True) + likeness.mean()
    values, vectors = principal(centred / len(rows))
    keep = min(most, int((values > TINY * values[:1]).sum()))
    values, weights = values[:keep], vectors[:, :keep] / (values[:keep] * len(rows)).sqrt()
    return QuadraticMoments(mean, landmarks, weights.to(rows.dtype), values.to(rows.dtype))


class Quadratic(nn.Module):
    """Rescale rows by their kernel values at public rows.

    x ↦ unit([unit((k(u, U) − k̄) A Λ^(−α/2)), 0.2]), u = unit(x − mean); a row of zeros stays zero.

    Formal guarantee: mean, landmarks U, weights A and Λ are public (from public or made-up rows, the mean perhaps
    released and paid for), so a row still tells of its own record only.

    Args:
        moments: centre, landmarks, weights and variances Λ.
        whiten: α in [0, 1]; 0 keeps the lengths, 1 makes all directions equally long.
    """

    mean: Tensor
    landmarks: Tensor
    weights: Tensor
    offset: Tensor

    def __init__(self, moments: QuadraticMoments, whiten: float) -> None:
        super().__init__()
        scale = (moments.variances / moments.variances[0]) ** (-whiten / 2)
        weights = moments.weights * scale
        typical = _squared(moments.landmarks, moments.landmarks).mean(0)
        buffers = {"mean": moments.mean, "landmarks": moments.landmarks, "weights": weights}
        for name, values in {**buffers, "offset": typical @ weights}.items():
            self.register_buffer(name, values)

    @classmethod
    def shaped(cls, dimension: int, landmarks: int, directions: int) -> Quadratic:
        """One with room for loaded numbers."""
        rows, weights = torch.zeros(landmarks, dimension), torch.zeros(landmarks, directions)
        return cls(QuadraticMoments(torch.zeros(dimension), rows, weights, torch.ones(directions)), 0.0)

    @property
    def width(self) -> int:
        """Coordinates of a row."""
        return self.weights.shape[1] + 1

    def forward(self, rows: Float[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        flat = rows.flatten(1)
        turned = _squared(unit(flat - self.mean), self.landmarks) @ self.weights - self.offset
        return with_constant(turned, of=flat)


def _squared(rows: Float[Tensor, "n d"], landmarks: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    likeness: Tensor = (rows @ landmarks.T + 1) ** 2
    return likeness

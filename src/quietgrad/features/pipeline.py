"""Encoder → centre → rescale → unit length, as one frozen module."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.features.encoders import unit
from quietgrad.features.moments import Moments

CONSTANT = 0.2
"""The last coordinate before the rows are put to unit length: what a bias is worth beside the features."""


class Rescale(nn.Module):
    """Centre, rescale and normalise encoded rows.

    x ↦ unit([unit((x − mean) V Λ^(−α/2)), 0.2]); a row of zeros stays zero.

    Formal guarantee: mean, V and Λ are public (from public rows, or released and paid for), so a row still tells of its
    own record only. Unit length costs nothing and makes every record's gradient as long as its error.

    Args:
        moments: centre, directions V and variances Λ.
        whiten: α in [0, 1]; 0 keeps the lengths, 1 makes all directions equally long.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self, moments: Moments, whiten: float) -> None:
        super().__init__()
        scale = (moments.variances / moments.variances[0]) ** (-whiten / 2)
        self.register_buffer("mean", moments.mean)
        self.register_buffer("directions", moments.directions * scale)

    @classmethod
    def shaped(cls, dimension: int, directions: int) -> Rescale:
        """One with room for loaded numbers."""
        eye = torch.eye(dimension, directions)
        return cls(Moments(torch.zeros(dimension), eye, torch.ones(directions)), 0.0)

    @property
    def width(self) -> int:
        """Coordinates of a row."""
        return self.directions.shape[1] + 1

    def forward(self, rows: Float[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        flat = rows.flatten(1)
        return with_constant((flat - self.mean) @ self.directions, of=flat)


def with_constant(turned: Float[Tensor, "n k"], *, of: Float[Tensor, "n d"]) -> Float[Tensor, "n j"]:
    """Append the constant to rows at unit length; unusable rows become zeros."""
    lengths = of.norm(dim=1, keepdim=True)
    there = lengths.isfinite() & (lengths > 0)  # as in `unit`
    constant = turned.new_full((turned.shape[0], 1), CONSTANT)  # `len` would fix the batch of an export
    return torch.where(there, unit(torch.cat([unit(turned), constant], 1)), 0.0)


class Pipeline(nn.Sequential):
    """Encoder and `Rescale`, saved and loaded as an ordinary state dict."""

    def __init__(self, encoder: nn.Module, rescale: Rescale) -> None:
        super().__init__()
        self.encoder, self.rescale = encoder, rescale
        self.requires_grad_(False)

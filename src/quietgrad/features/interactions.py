"""Products of the leading directions, beside the rows themselves."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.features.encoders import unit
from quietgrad.features.pipeline import Rescale


class Products(nn.Module):
    """Append products of pairs of the first m coordinates of the rescaled row.

    x ↦ unit([r(x), unit(products of pairs of r(x)'s first m coordinates)]); a row of zeros stays zero.

    Formal guarantee: a fixed function of the one row, after a rescaling that is public or paid for; it releases
    nothing.

    Args:
        rescale: r, whose first coordinates are the directions of most variance.
        leading: m ≥ 1; m(m + 1)/2 products join the row.
    """

    def __init__(self, rescale: Rescale, leading: int) -> None:
        super().__init__()
        self.rescale, self.leading = rescale, leading

    @property
    def width(self) -> int:
        """Coordinates of a row."""
        return self.rescale.width + self.leading * (self.leading + 1) // 2

    def forward(self, rows: Float[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        turned = self.rescale(rows)
        return unit(torch.cat([turned, unit(_pairs(turned[:, : self.leading]))], 1))


def _pairs(x: Float[Tensor, "n m"]) -> Float[Tensor, "n p"]:
    """Return x_i x_j for i ≤ j, scaled to the length of the outer product."""
    i, j = torch.triu_indices(x.shape[1], x.shape[1])
    return x[:, i] * x[:, j] * torch.where(i == j, 1.0, 2**0.5)

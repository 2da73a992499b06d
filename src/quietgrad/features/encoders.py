"""Encoders: from one record to a row of length at most one, by fixed rules.

Formal guarantee: every encoder here treats each record on its own and holds nothing that was learned from private
records, so a row tells of its own record only, and what protects the row protects the record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad._errors import PrivacyError
from quietgrad.features.scattering import CHANNELS, ScatterNet

ROWS = 256
"""Records that are encoded at a time."""


class Scatter(nn.Module):
    """ScatterNet's rows [n, 81 c, positions] at unit length.

    Each three channels are normalised together.

    Args:
        input_shape: (channels, height, width) of one image.
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        height, width = image_sides(input_shape, "Scatter")
        self.net = ScatterNet(height, width)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m p"]:
        features = self._features(x)
        return unit(F.group_norm(features, features.shape[1] // 3).flatten(2))

    def _features(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m h2 w2"]:
        features: Tensor = self.net(x)
        return features


class ScatterRoots(Scatter):
    """ScatterNet with √S1 and √S2 in place of S1 and S2.

    Faint edges count for more beside strong ones.
    """

    def _features(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m h2 w2"]:
        average, moduli = super()._features(x).unflatten(1, (-1, CHANNELS)).split([1, CHANNELS - 1], 2)
        return torch.cat([average, moduli.clamp_min(0).sqrt()], 2).flatten(1, 2)


class Mirrored(nn.Module):
    """The sum of the rows of an image and of its mirror image, at unit length.

    For images that mean the same in a mirror (clothes, scenes; not digits or letters). A linear head would have to
    learn so from both; here it is given, and half of the directions are left to tell from noise.

    Args:
        encoder: from images to rows.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n ..."]:
        return unit(self.encoder(x) + self.encoder(x.flip(-1)))


class Pixels(nn.Module):
    """The inputs at unit length: rows [n, channels, positions] or [n, d]."""

    def forward(self, x: Float[Tensor, "n ..."]) -> Tensor:
        return unit(x.flatten(2) if x.dim() > 2 else x)


class Frozen(nn.Module):
    """A module that was trained on public data, at unit length.

    Args:
        module: from inputs [n, ...] to features [n, ...]; it is put into evaluation mode and never trained.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Float[Tensor, "n d"]:
        return unit(self.module(x).flatten(1))


class Columns(nn.Module):
    """Table columns, clamped to known bounds and mapped to [−1, 1]/√d.

    So a row is at most one long.

    A missing value and a constant column become 0, the middle.

    Args:
        lower: bounds of the d columns, known without looking at the records or paid for.
        upper: likewise.
    """

    lower: Tensor
    upper: Tensor

    def __init__(self, lower: Float[Tensor, " d"], upper: Float[Tensor, " d"]) -> None:
        super().__init__()
        if lower.shape != upper.shape or lower.dim() != 1 or not (lower <= upper).all():
            raise ValueError(
                f"Expected bounds lower <= upper for each column, got {lower.tolist()} and {upper.tolist()}."
            )
        self.register_buffer("lower", lower)
        self.register_buffer("upper", upper)

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        inside = torch.minimum(torch.maximum(x, self.lower), self.upper)
        width = (self.upper - self.lower).clamp_min(torch.finfo(x.dtype).tiny)
        scaled = torch.where(self.upper > self.lower, 2 * (inside - self.lower) / width - 1, 0.0)
        return scaled.nan_to_num(0.0, 0.0, 0.0) / math.sqrt(max(1, x.shape[1]))


def unit(rows: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
    """Scale every row to length one; rows of zeros or non-finite values become 0."""
    flat = rows.flatten(1)
    norms = flat.norm(dim=1, keepdim=True)
    finite = norms.isfinite() & (norms > 0)
    return torch.where(finite, flat / torch.where(finite, norms, 1.0), 0.0).view(rows.shape)


@torch.no_grad()
def encode(
    encoder: nn.Module, inputs: Float[Tensor, "n ..."], *, device: str = "cpu"
) -> Float[Tensor, "n ..."]:
    """All rows, computed once; an encoder that mixes records is refused.

    Args:
        device: where they are computed. Inputs, rows and the encoder are on the CPU before and after.
    """
    encoder.eval()
    _refuse_mixing(encoder, torch.zeros_like(inputs[:2]))
    encoder.to(device)
    try:
        return torch.cat([encoder(part.to(device)).cpu() for part in inputs.split(ROWS)])
    finally:
        encoder.cpu()


def _refuse_mixing(encoder: nn.Module, like: Tensor) -> None:
    """Made-up records decide whether an encoder is accepted, never private ones."""
    rng = torch.Generator().manual_seed(0)
    probe = torch.randn(4, *like.shape[1:], generator=rng).to(like.dtype)
    alone = torch.cat([encoder(row[None]) for row in probe])
    if not torch.allclose(encoder(probe), alone, rtol=1e-3, atol=1e-4):
        raise PrivacyError(
            f"encoder={type(encoder).__name__} gives a record other features alone than in a batch. "
            "Use one that treats each record on its own (no batch statistics, no random transforms)."
        )


def image_sides(shape: Sequence[int], name: str) -> tuple[int, int]:
    """Height and width of records that have to be images."""
    if len(shape) != 3:
        raise ValueError(
            f"{name} takes images (channels, height, width), got records of shape {tuple(shape)}. "
            "Reshape them, or use another encoder."
        )
    _, height, width = shape
    return height, width

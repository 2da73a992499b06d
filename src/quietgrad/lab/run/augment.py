"""Augmented views of images: random flips and shifts, several per record."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad.lab.run.config_sections import AugmentConfig


def make_views(x: Float[Tensor, "n c h w"], augment: AugmentConfig) -> Float[Tensor, "n_views c h w"]:
    """`views` random versions of each image, record by record (row i·views + j)."""
    repeated = x.repeat_interleave(augment.views, dim=0)
    if augment.flip:
        flipped = torch.rand(len(repeated), device=x.device) < 0.5
        repeated = torch.where(flipped[:, None, None, None], repeated.flip(-1), repeated)
    return shift(repeated, augment.shift) if augment.shift else repeated


def shift(x: Float[Tensor, "n c h w"], most: int) -> Float[Tensor, "n c h w"]:
    """Each image moved by up to `most` pixels both ways, its border repeated."""
    n, _, height, width = x.shape
    padded = torch.nn.functional.pad(x, (most,) * 4, mode="replicate")
    top, left = torch.randint(2 * most + 1, (2, n, 1), device=x.device)
    rows = (top + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (left + torch.arange(width, device=x.device))[:, None, None, :]
    sample = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
    return padded[sample, channel, rows, columns]

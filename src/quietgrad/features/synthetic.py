"""Synthetic images with second moments like photographs and drawings.

They serve as public data where there are none.

Dead leaves: soft-edged discs and boxes of power-law size, each hiding what lies below, with colours mostly along
brightness; every other grey image has only a few of them on a dark ground. Nothing is learned from any data set.
Lee, Mumford, Huang: Occlusion models for natural images (2001).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LEAVES = 24
FEW = 6
AT_ONCE = 250
SMALLEST, LARGEST = 0.04, 0.6  # radii as parts of the image's side
CENTRE, SPREAD = 0.3, 0.3  # brings [0, 1] to about mean zero and unit variance, as images are usually given


def synthetic_inputs(
    count: int, shape: Sequence[int], *, vocabulary: int | None = None, seed: int = 0
) -> Tensor:
    """Generate inputs of any shape: images, sequences of tokens, or rows of columns.

    Images are dead leaves of mean 0 and variance 1. Tokens have Zipf's frequencies, low numbers being frequent as in
    most vocabularies; 0, which is often padding, is left out. Columns are independent and normal.

    Args:
        shape: of one input: (channels, height, width), (tokens,) or (columns,).
        vocabulary: how many tokens there are; None for inputs that are not tokens.
    """
    rng = torch.Generator().manual_seed(seed)
    if vocabulary is not None:
        frequencies = 1.0 / torch.arange(1, vocabulary, dtype=torch.float64)
        return 1 + torch.multinomial(frequencies, count * math.prod(shape), True, generator=rng).view(
            count, *shape
        )
    if len(shape) != 3:
        return torch.randn(count, *shape, generator=rng)
    images = synthetic_images(count, shape, seed=seed)
    return (images - images.mean()) / images.std()


def synthetic_images(count: int, shape: Sequence[int], *, seed: int = 0) -> Float[Tensor, "n c h w"]:
    """Generate `count` roughly standardised images of a shape from a seed."""
    rng = torch.Generator().manual_seed(seed)
    sizes = [min(AT_ONCE, count - start) for start in range(0, count, AT_ONCE)]
    images = torch.cat([_leaves(size, shape, rng) for size in sizes])
    return (images - CENTRE) / SPREAD


def _leaves(n: int, shape: Sequence[int], rng: torch.Generator) -> Float[Tensor, "n c h w"]:
    channels, height, width = shape
    rows = (torch.arange(2 * height) + 0.5) / (2 * height)
    columns = (torch.arange(2 * width) + 0.5) / (2 * width)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    few = (torch.rand(n, generator=rng) < (0.5 if channels == 1 else 0.0))[:, None, None, None]
    image = torch.where(few, 0.0, _colours(n, channels, rng)).expand(-1, -1, *y.shape)
    for number in range(LEAVES):
        mask, across = _leaf(n, x, y, rng, sharpness=2.0 * height)
        shown = mask * torch.where(few, float(number < FEW), 1.0)
        shade = _uniform(n, rng)[:, None] * 0.3 - 0.15
        image = image * (1 - shown) + shown * (_colours(n, channels, rng) + shade * across)
    return F.avg_pool2d(image.clamp(0, 1), 2)


def _leaf(n: int, x: Tensor, y: Tensor, rng: torch.Generator, sharpness: float) -> tuple[Tensor, Tensor]:
    """A soft mask, and the position across the leaf from −1 to 1."""
    draw = _uniform(n, rng)
    radius = ((1 - draw) / LARGEST**2 + draw / SMALLEST**2).rsqrt()  # density ~ 1/r³: scale invariant
    angle = math.pi * _uniform(n, rng)
    stretch = torch.exp(0.25 * torch.randn(n, 1, 1, generator=rng))
    dx, dy = x - 1.2 * _uniform(n, rng) + 0.1, y - 1.2 * _uniform(n, rng) + 0.1
    p = (dx * angle.cos() + dy * angle.sin()) / stretch
    q = (dy * angle.cos() - dx * angle.sin()) * stretch
    disc = (p * p + q * q).sqrt() - radius
    box = torch.maximum(p.abs(), q.abs()) - 0.8 * radius
    distance = torch.where(_uniform(n, rng) < 0.5, disc, box)
    return torch.sigmoid(-sharpness * distance)[:, None], (p / radius)[:, None]


def _colours(n: int, channels: int, rng: torch.Generator) -> Float[Tensor, "n c 1 1"]:
    tint = 0.18 * torch.randn(n, channels, 1, 1, generator=rng)
    tint = tint - tint.mean(1, keepdim=True)
    return (torch.rand(n, 1, 1, 1, generator=rng) + tint).clamp(0, 1)


def _uniform(n: int, rng: torch.Generator) -> Float[Tensor, "n 1 1"]:
    return torch.rand(n, 1, 1, generator=rng)

"""Patches: how much of each small pattern is in each quarter of an image.

The patterns are synthetic.

At two scales, every patch p of six by six pixels, brightness and contrast taken out, meets whitened patches d of
made-up images:

    z = ⟨W(p − m), d⟩,   h = √ mean over a quarter of ReLU(±z − 0.8)

Each pattern comes with its mirror image, and features of the two in mirrored quarters are averaged, so that an image
and its mirror image have the same row: what augmentation would have to learn is given, and costs nothing.
Coates, Lee, Ng: An analysis of single-layer networks in unsupervised feature learning (2011); here nothing is learned.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from quietgrad.features.encoders import image_sides, unit
from quietgrad.features.synthetic import synthetic_images

SIZE = 6
PATTERNS = 400
THRESHOLD = 0.8
CONTRAST = 0.02
"""Added to a patch's variance: patches without contrast stay without features."""
RIDGE = 0.1
"""Part of the mean variance that whitening leaves untouched."""
IMAGES, PATCHES = 400, 80
QUARTERS = 2
CHUNK = 8
"""Images at a time: their likenesses stay in the cache."""


class Patches(nn.Module):
    """Synthetic patterns at two scales, at unit length: rows [n, 1600, 4].

    An image and its mirror image have the same row.

    Args:
        input_shape: (channels, height, width) of one image, sides of at least 12.
    """

    def __init__(self, input_shape: Sequence[int]) -> None:
        super().__init__()
        if min(image_sides(input_shape, "Patches")) < 2 * SIZE:
            raise ValueError(
                f"Patches takes images with sides of at least {2 * SIZE}, got {tuple(input_shape[1:])}. Use pixels."
            )
        made_up = synthetic_images(IMAGES, input_shape, seed=1)
        self.fine = Patterns(made_up, stride=2)
        self.coarse = Patterns(F.avg_pool2d(made_up, 2), stride=1)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m p"]:
        return torch.cat(
            [self._few(few.contiguous(memory_format=torch.channels_last)) for few in x.split(CHUNK)]
        )

    def _few(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n m p"]:
        features = torch.cat([self.fine(x), self.coarse(F.avg_pool2d(x, 2))], 1)
        return unit(features.flatten(2))


class Patterns(nn.Module):
    """Rectified likeness to the patterns of one scale, averaged over quarters.

    Args:
        made_up: images that the patterns are cut from.
        stride: pixels from patch to patch.
    """

    kernels: Tensor
    offsets: Tensor

    def __init__(self, made_up: Float[Tensor, "m c h w"], stride: int) -> None:
        super().__init__()
        kernels, offsets = whitened_patterns(made_up)
        self.stride = stride
        self.register_buffer("kernels", kernels.contiguous(memory_format=torch.channels_last))
        self.register_buffer("offsets", offsets[:, None, None])

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n f 2 2"]:
        window = torch.full_like(self.kernels[:1], 1 / self.kernels[0].numel())
        mean, square = (F.conv2d(part, window, stride=self.stride) for part in (x, x * x))
        contrast = ((square - mean**2).clamp_min(0) + CONTRAST).rsqrt()
        likeness = F.conv2d(x, self.kernels, stride=self.stride) * contrast - self.offsets
        found = torch.cat([_quarters(likeness), _quarters(-likeness)], 1)
        own, mirrored = (found.view(len(x), 2, 2, PATTERNS, QUARTERS, QUARTERS)[:, :, i] for i in (0, 1))
        return ((own + mirrored.flip(-1)) / 2).flatten(1, 2).sqrt()


def whitened_patterns(
    made_up: Float[Tensor, "m c h w"],
) -> tuple[Float[Tensor, "f c 6 6"], Float[Tensor, " f"]]:
    """Kernels and offsets of patterns and, after them, of their mirror images."""
    cut = _cut(made_up, torch.Generator().manual_seed(0))
    patches = torch.cat([cut, cut.flip(3)]).flatten(
        1
    )  # both, so that whitening does not tell left from right
    mean = patches.mean(0)
    values, vectors = torch.linalg.eigh(((patches - mean).T @ (patches - mean) / len(patches)).double())
    whiten = (vectors * (values + RIDGE * values.mean()).rsqrt() @ vectors.T).float()
    white = (cut.flatten(1) - mean) @ whiten
    lengths = white.norm(dim=1)
    chosen = white[lengths > lengths.median()][:PATTERNS].view(-1, *cut.shape[1:])
    patterns = F.normalize(torch.cat([chosen, chosen.flip(3)]).flatten(1))
    kernels = patterns @ whiten
    level = kernels - kernels.mean(1, keepdim=True)  # a patch's brightness is taken out by the kernel
    return level.view(len(patterns), *cut.shape[1:]), kernels @ mean


def _cut(made_up: Float[Tensor, "m c h w"], rng: torch.Generator) -> Float[Tensor, "p c 6 6"]:
    """Patches at random places in random order, brightness and contrast taken out."""
    all_of_them = F.unfold(made_up, SIZE)
    places = torch.randint(all_of_them.shape[2], (len(made_up), PATCHES), generator=rng)
    rows = all_of_them.gather(2, places[:, None].expand(-1, all_of_them.shape[1], -1))
    patches = rows.transpose(1, 2).flatten(0, 1)
    patches = patches[torch.randperm(len(patches), generator=rng)]
    level = patches - patches.mean(1, keepdim=True)
    normal = level * (level.square().mean(1, keepdim=True) + CONTRAST).rsqrt()
    return normal.view(len(patches), -1, SIZE, SIZE)


def _quarters(likeness: Float[Tensor, "n f h w"]) -> Float[Tensor, "n f 2 2"]:
    return F.adaptive_avg_pool2d((likeness - THRESHOLD).relu_(), QUARTERS)

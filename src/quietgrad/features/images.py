"""Which encoder suits images of a shape."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from quietgrad.features.encoders import Pixels, Scatter
from quietgrad.features.patterns import SIZE, Patches
from quietgrad.features.scattering import STRIDE


def image_encoder(shape: Sequence[int]) -> nn.Module:
    """Choose an encoder by the shape of the images.

    Patches for colour, ScatterNet for grey images of sides it takes, the pixels for very small ones.
    """
    channels, sides = shape[0], shape[1:]
    if channels == 1 and all(side % STRIDE == 0 and side >= 2 * STRIDE for side in sides):
        return Scatter(shape)
    return Patches(shape) if min(sides) >= 2 * SIZE else Pixels()

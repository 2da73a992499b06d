"""Small trainable networks on fixed features, with ScatterNet in front or on features computed before.

Tramer, Boneh: Differentially private learning needs better features (2021).
"""

from __future__ import annotations

import math

from torch import nn

from quietgrad.features.scattering import CHANNELS, STRIDE, ScatterNet
from quietgrad.lab.models.shapes import flat_width, image_shape

GROUPS = 27  # divides 81 and 243 channels


def _norm(channels: int) -> nn.Module:
    return nn.GroupNorm(math.gcd(channels, GROUPS), channels, affine=False)


def feature_linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """GroupNorm without parameters and one linear layer, on features (channels, height, width)."""
    channels, height, width = image_shape(input_shape, "feature_linear", smallest=1)
    return nn.Sequential(_norm(channels), nn.Flatten(), nn.Linear(channels * height * width, num_classes))


def feature_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """GroupNorm - conv 64@3x3 - pool - conv 64@3x3 - fc, tanh: 187,210 parameters on features of 3x32x32."""
    channels, _, _ = image_shape(input_shape, "feature_cnn", smallest=2)
    features = nn.Sequential(
        _norm(channels),
        nn.Conv2d(channels, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
    )
    return features.append(nn.Linear(flat_width(features, input_shape), num_classes))


def scatter_linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ScatterNet in front of `feature_linear`."""
    front, shape = _front(input_shape, "scatter_linear")
    return nn.Sequential(front, feature_linear(shape, num_classes))


def scatter_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """ScatterNet in front of `feature_cnn`."""
    front, shape = _front(input_shape, "scatter_cnn")
    return nn.Sequential(front, feature_cnn(shape, num_classes))


def _front(input_shape: tuple[int, ...], model: str) -> tuple[nn.Module, tuple[int, int, int]]:
    channels, height, width = image_shape(input_shape, model, smallest=2 * STRIDE)
    return ScatterNet(height, width), (channels * CHANNELS, height // STRIDE, width // STRIDE)

"""The two tanh networks of private image classification.

Papernot, Thakurta, Song, Chien, Erlingsson: Tempered sigmoid activations for deep learning with
differential privacy (2020), in the form of Tramer and Boneh: Differentially private learning needs
better features (2021).
"""

from __future__ import annotations

from torch import nn

from quietgrad.lab.models.max_pool import MaxPool
from quietgrad.lab.models.shapes import image_shape, with_classifier


def tanh_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """26,010 parameters at 28x28: conv 16@8x8/2 - pool 2x2 - conv 32@4x4/2 - pool 2x2 - fc 32 - fc."""
    channels, _, _ = image_shape(input_shape, "tanh_cnn", smallest=16)
    features = nn.Sequential(
        nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=2),
        nn.Tanh(),
        MaxPool(2, stride=1),
        nn.Conv2d(16, 32, kernel_size=4, stride=2),
        nn.Tanh(),
        MaxPool(2, stride=1),
        nn.Flatten(),
    )
    return with_classifier(features, input_shape, 32, nn.Tanh, num_classes)


def end_to_end_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """550,570 parameters at 3x32x32: (conv, conv, pool) with 32, 64 and 128 filters - fc 128 - fc."""
    channels, _, _ = image_shape(input_shape, "end_to_end_cnn", smallest=8)
    features = nn.Sequential()
    for width in (32, 64, 128):
        for inputs in (channels, width):
            features.extend([nn.Conv2d(inputs, width, kernel_size=3, padding=1), nn.Tanh()])
        features.append(nn.MaxPool2d(2))
        channels = width
    features.append(nn.Flatten())
    return with_classifier(features, input_shape, 128, nn.Tanh, num_classes)

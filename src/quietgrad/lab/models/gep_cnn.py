"""The MNIST network of GEP: two convolutions with max-pooling and one fully connected layer.

Yu, Zhang, Chen, Liu: Do not let privacy overbill utility (2021), section 4. The paper states the layers and not
their widths: 16 and 32 filters of 5x5 are ours (28,938 parameters at 28x28).
"""

from __future__ import annotations

from torch import nn

from quietgrad.lab.models.shapes import flat_width, image_shape


def gep_cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """conv 16@5x5 - pool 2x2 - conv 32@5x5 - pool 2x2 - fc."""
    channels, _, _ = image_shape(input_shape, "gep_cnn", smallest=4)
    features = nn.Sequential()
    for width in (16, 32):
        features.extend([nn.Conv2d(channels, width, kernel_size=5, padding=2), nn.ReLU(), nn.MaxPool2d(2)])
        channels = width
    features.append(nn.Flatten())
    return features.append(nn.Linear(flat_width(features, input_shape), num_classes))

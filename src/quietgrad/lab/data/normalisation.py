"""Fixed input scalings: constants published for other data, never statistics of the private records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalisation:
    """x -> (x / 255 - mean) / std, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    origin: str

    def apply(self, images: np.ndarray) -> Tensor:
        """Scaled float32 images [n, c, h, w] from uint8 ones."""
        scaled = torch.tensor(images, dtype=torch.float32).div_(255.0)
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return scaled.sub_(mean).div_(std)

    def describe(self) -> str:
        """One line for the report."""
        mean, std = (", ".join(f"{value:g}" for value in values) for values in (self.mean, self.std))
        return f"mean {mean}; std {std}: constants {self.origin}"


# Each data set is scaled with the constants of *another* one, so that no private record enters them.
MNIST_CONSTANTS = Normalisation((0.1307,), (0.3081,), "published for MNIST")
FASHION_CONSTANTS = Normalisation((0.2860,), (0.3530,), "published for Fashion-MNIST")
IMAGENET_CONSTANTS = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "published for ImageNet")


def stored(channels: int) -> Normalisation:
    """[0, 255] to [0, 1], for encoders that scale by themselves."""
    return Normalisation((0.0,) * channels, (1.0,) * channels, "that map [0, 255] to [0, 1]")


def centred(channels: int) -> Normalisation:
    """Scaling to [-1, 1], which needs no statistics at all."""
    return Normalisation((0.5,) * channels, (0.5,) * channels, "that map [0, 255] to [-1, 1]")

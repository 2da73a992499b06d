"""MobileNetV2 and EfficientNet-Lite0 without their classifiers.

Their ImageNet weights come as packages.

Both are a row of inverted residuals: widen by 1×1, filter each channel by k×k, narrow by 1×1, and add the input where
shapes allow. Sandler et al.: MobileNetV2 (2018). Tan, Le: EfficientNet (2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

WIDTH = 1280
"""Features of an image."""


@dataclass(frozen=True)
class Design:
    """What tells the two apart.

    Args:
        stages: (kernel, widening, channels, blocks, stride of the first block) of each stage.
        epsilon: of the batch norms, which stay as they were trained.
        padded_late: whether a stride of two pads below and to the right first, as TensorFlow does.
        mean, std: what the images are scaled by; published with the weights.
    """

    stages: tuple[tuple[int, int, int, int, int], ...]
    epsilon: float
    padded_late: bool
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


DESIGNS = {
    "mobilenet_v2": Design(
        ((3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (3, 6, 32, 3, 2), (3, 6, 64, 4, 2), (3, 6, 96, 3, 1),
         (3, 6, 160, 3, 2), (3, 6, 320, 1, 1)),
        1e-5, False, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225),
    ),
    "efficientnet_lite0": Design(
        ((3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2), (5, 6, 112, 3, 1),
         (5, 6, 192, 4, 2), (3, 6, 320, 1, 1)),
        1e-3, True, (0.498, 0.498, 0.498), (0.502, 0.502, 0.502),
    ),
}  # fmt: skip


class MobileNet(nn.Module):
    """From images in [0, 1] of any size to features [n, 1280].

    Features are the mean over positions of the last layer.

    Args:
        design: a key of `DESIGNS`.
        side: images are resized to this many pixels first.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, design: str, side: int = 128) -> None:
        super().__init__()
        made = DESIGNS[design]
        self.side = side
        layers: list[nn.Module] = [_convolution(3, 32, 3, made, stride=2)]
        inputs = 32
        for kernel, widening, channels, blocks, stride in made.stages:
            for block in range(blocks):
                layers.append(
                    _Inverted(inputs, channels, kernel, widening, stride if block == 0 else 1, made)
                )
                inputs = channels
        self.layers = nn.Sequential(*layers, _convolution(inputs, WIDTH, 1, made))
        self.register_buffer("mean", torch.tensor(made.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(made.std).view(1, 3, 1, 1), persistent=False)

    def load_in_order(self, state: Mapping[str, Tensor]) -> None:
        """Load weights by their order; those of a classifier at the end are skipped.

        Raises:
            ValueError: they are of another network.
        """
        own = self.state_dict()
        given = list(state.values())[: len(own)]
        if [tuple(t.shape) for t in given] != [tuple(t.shape) for t in own.values()]:
            raise ValueError("The weights are of another network. Take the package that this encoder names.")
        self.load_state_dict(dict(zip(own, given, strict=True)))

    def forward(self, images: Float[Tensor, "n 3 h w"]) -> Float[Tensor, "n 1280"]:
        side = (self.side, self.side)
        scaled = (F.interpolate(images, side, mode="bilinear", antialias=True) - self.mean) / self.std
        features: Tensor = self.layers(scaled).mean((2, 3))
        return features


class _Inverted(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, kernel: int, widening: int, stride: int, made: Design
    ) -> None:
        super().__init__()
        wide = inputs * widening
        widen = [_convolution(inputs, wide, 1, made)] if widening > 1 else []
        each = _convolution(wide, wide, kernel, made, stride=stride, groups=wide)
        narrow = _convolution(wide, outputs, 1, made)[:2]
        self.parts = nn.Sequential(*widen, each, narrow)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n o h2 w2"]:
        y: Tensor = self.parts(x)
        return x + y if self.adds else y


class _LatePadded(nn.Conv2d):
    """Zeros so that output = ⌈input/stride⌉, the odd one below and to the right."""

    def forward(self, x: Tensor) -> Tensor:
        pads = [self._pads(size, axis) for axis, size in enumerate(x.shape[2:])]
        return super().forward(F.pad(x, (*pads[1], *pads[0])))

    def _pads(self, size: int, axis: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[axis], self.stride[axis]
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return total // 2, total - total // 2


def _convolution(
    inputs: int, outputs: int, kernel: int, made: Design, *, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    kind, padding = (_LatePadded, 0) if made.padded_late else (nn.Conv2d, kernel // 2)
    convolution = kind(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=made.epsilon), nn.ReLU6())

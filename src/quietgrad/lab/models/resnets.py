"""Residual networks with GroupNorm: ResNet20 and wide ResNets.

He, Zhang, Ren, Sun: Deep residual learning for image recognition (2016).
Zagoruyko, Komodakis: Wide residual networks (2016).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.lab.models.shapes import image_shape
from quietgrad.lab.models.standardised import StandardisedConv2d


@dataclass(frozen=True)
class Layers:
    """Which convolution and which norm a network is made of.

    Args:
        groups: groups of each GroupNorm.
        affine: whether the norms have a trainable scale and shift.
        standardise: whether convolutions standardise their weights.
    """

    groups: int
    affine: bool
    standardise: bool

    def conv(self, inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        """A convolution without bias that keeps the size, divided by the stride."""
        kind = StandardisedConv2d if self.standardise else nn.Conv2d
        return kind(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)

    def norm(self, channels: int) -> nn.GroupNorm:
        """A GroupNorm over the channels."""
        if self.groups < 1 or channels % self.groups:
            raise ValueError(
                f"groups={self.groups} does not divide {channels} channels. Use a power of two <= 16."
            )
        return nn.GroupNorm(self.groups, channels, affine=self.affine)


class PaddedShortcut(nn.Module):
    """A shortcut without parameters: every second pixel, new channels zero."""

    def __init__(self, new_channels: int) -> None:
        super().__init__()
        self.new_channels = new_channels

    def forward(self, x: Tensor) -> Tensor:
        """Subsample and pad the channels on both sides."""
        before = self.new_channels // 2
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, before, self.new_channels - before))


class BasicBlock(nn.Module):
    """relu(shortcut(x) + norm conv relu norm conv x)."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: str, layers: Layers) -> None:
        super().__init__()
        self.body = nn.Sequential(
            layers.conv(inputs, outputs, 3, stride),
            layers.norm(outputs),
            nn.ReLU(),
            layers.conv(outputs, outputs, 3),
            layers.norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 and shortcut == "pad":
            self.shortcut = PaddedShortcut(outputs - inputs)
        elif stride > 1:
            self.shortcut = nn.Sequential(layers.conv(inputs, outputs, 1, stride), layers.norm(outputs))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        out: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return out


class WideBlock(nn.Module):
    """shortcut + conv relu norm conv relu norm x; norm and activation come before the convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int, layers: Layers) -> None:
        super().__init__()
        self.enter = nn.Sequential(layers.norm(inputs), nn.ReLU())
        self.body = nn.Sequential(
            layers.conv(inputs, outputs, 3, stride),
            layers.norm(outputs),
            nn.ReLU(),
            layers.conv(outputs, outputs, 3),
        )
        self.shortcut = layers.conv(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """One block; a changed width projects the activated input, an unchanged one adds the raw input."""
        entered = self.enter(x)
        body: Tensor = self.body(entered)
        return body + (x if self.shortcut is None else self.shortcut(entered))


def _network(stem: nn.Module, stages: list[nn.Module], head: list[nn.Module]) -> nn.Module:
    """Named children, because methods group parameters by stage."""
    model = nn.Sequential()
    model.add_module("stem", stem)
    for number, stage in enumerate(stages, start=1):
        model.add_module(f"stage{number}", stage)
    model.add_module("head", nn.Sequential(*head))
    return model


def resnet20(
    input_shape: tuple[int, ...],
    num_classes: int,
    shortcut: str = "conv",
    groups: int = 8,
    affine: bool = True,
    standardise: bool = False,
) -> nn.Module:
    """Three stages of three blocks with 16, 32, 64 channels: 272,474 parameters at 3 channels and 10 classes.

    GEP's 268,346 parameters are shortcut="pad", affine=False.

    Args:
        input_shape: (channels, height, width).
        num_classes: number of outputs.
        shortcut: where the size changes, "conv" (1x1 convolution and norm) or "pad" (no parameters).
        groups: of each GroupNorm.
        affine: whether the norms are trainable.
        standardise: whether convolutions standardise their weights.
    """
    channels, _, _ = image_shape(input_shape, "resnet20", smallest=8)
    if shortcut not in ("conv", "pad"):
        raise ValueError(f"Expected shortcut='conv' or 'pad', got {shortcut!r}.")
    layers = Layers(groups, affine, standardise)
    stages: list[nn.Module] = []
    width = 16
    for outputs, first_stride in ((16, 1), (32, 2), (64, 2)):
        blocks = [BasicBlock(width, outputs, first_stride, shortcut, layers)]
        blocks += [BasicBlock(outputs, outputs, 1, shortcut, layers) for _ in range(2)]
        stages.append(nn.Sequential(*blocks))
        width = outputs
    stem = nn.Sequential(layers.conv(channels, 16, 3), layers.norm(16), nn.ReLU())
    return _network(stem, stages, [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes)])


def _wide_resnet(
    depth: int, input_shape: tuple[int, ...], num_classes: int, groups: int, affine: bool, standardise: bool
) -> nn.Module:
    """Depth 6n+4, widths 64, 128, 256 (four times 16, 32, 64)."""
    channels, _, _ = image_shape(input_shape, f"wrn_{depth}_4", smallest=8)
    layers = Layers(groups, affine, standardise)
    stages: list[nn.Module] = []
    width = 16
    for outputs, first_stride in ((64, 1), (128, 2), (256, 2)):
        blocks = [WideBlock(width, outputs, first_stride, layers)]
        blocks += [WideBlock(outputs, outputs, 1, layers) for _ in range((depth - 4) // 6 - 1)]
        stages.append(nn.Sequential(*blocks))
        width = outputs
    head = [
        layers.norm(width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, num_classes),
    ]
    return _network(layers.conv(channels, 16, 3), stages, head)


def wrn_16_4(
    input_shape: tuple[int, ...],
    num_classes: int,
    groups: int = 16,
    affine: bool = True,
    standardise: bool = False,
) -> nn.Module:
    """Wide ResNet of depth 16: 2,748,890 parameters at 3 channels and 10 classes. Args as in `resnet20`."""
    return _wide_resnet(16, input_shape, num_classes, groups, affine, standardise)


def wrn_28_4(
    input_shape: tuple[int, ...],
    num_classes: int,
    groups: int = 16,
    affine: bool = True,
    standardise: bool = False,
) -> nn.Module:
    """Wide ResNet of depth 28: 5,849,050 parameters at 3 channels and 10 classes. Args as in `resnet20`."""
    return _wide_resnet(28, input_shape, num_classes, groups, affine, standardise)

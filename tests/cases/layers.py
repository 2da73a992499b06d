"""Every layer that the laws run over: one line to add one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

Build = Callable[[], nn.Module]
Inputs = Callable[[int, Generator], tuple[Tensor, ...]]
Losses = Callable[[nn.Module, Sequence[Tensor]], Tensor]


def smooth_losses(model: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """A loss per sample in which every output coordinate counts differently; samples first."""
    out = model(*inputs)
    flat = out.flatten(1)
    signs = torch.arange(flat.shape[1], dtype=flat.dtype).add(1.0).sin()
    return (flat * signs).sum(1) + 0.1 * flat.square().sum(1)


@dataclass(frozen=True)
class LayerCase:
    """A small model around one layer.

    Args:
        inputs: (n, generator) → the model's arguments for n samples, float32.
    """

    name: str
    build: Build
    inputs: Inputs
    losses: Losses = smooth_losses

    def __str__(self) -> str:
        return self.name

    def model(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build().to(dtype)

    def batch(self, n: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, ...]:
        drawn = self.inputs(n, Generator().manual_seed(seed))
        return tuple(x.to(dtype) if x.is_floating_point() else x for x in drawn)


def real(*shape: int) -> Inputs:
    """One normal tensor `[n, *shape]`."""
    return lambda n, g: (torch.randn(n, *shape, generator=g),)


def tokens(vocabulary: int, *shape: int) -> Inputs:
    """One integer tensor `[n, *shape]`, with repeated tokens."""
    return lambda n, g: (torch.randint(0, vocabulary, (n, *shape), generator=g),)


class Apply(nn.Module):
    """A model from a function of its parts: `Apply(lambda m, x: m.a(m.b(x)), a=..., b=...)`."""

    def __init__(self, forward: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(self, *inputs)


def after(first: nn.Module, *rest: nn.Module) -> nn.Module:
    return nn.Sequential(first, *rest)


LAYERS: list[LayerCase] = [
    LayerCase("linear", lambda: nn.Linear(5, 3), real(5)),
    LayerCase("linear_no_bias", lambda: nn.Linear(5, 3, bias=False), real(5)),
    LayerCase(
        "linear_3d", lambda: after(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)), real(6, 5)
    ),
    LayerCase("linear_4d", lambda: nn.Linear(5, 3), real(2, 3, 5)),
    LayerCase("linear_many_tokens", lambda: nn.Linear(2, 3), real(9, 2)),
    LayerCase(
        "mlp", lambda: after(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), real(6)
    ),
    LayerCase("conv2d", lambda: nn.Conv2d(2, 3, 3), real(2, 6, 5)),
    LayerCase("conv2d_stride_padding", lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), real(2, 7, 6)),
    LayerCase("conv2d_groups", lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), real(4, 5, 5)),
    LayerCase("conv2d_reflect", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), real(2, 5, 5)),
    LayerCase("conv2d_wide", lambda: nn.Conv2d(8, 9, 3, padding=1, bias=False), real(8, 2, 2)),
    LayerCase("layer_norm", lambda: after(nn.Linear(4, 5), nn.LayerNorm(5)), real(3, 4)),
    LayerCase("group_norm", lambda: after(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)), real(2, 5, 5)),
    LayerCase("embedding", lambda: nn.Embedding(7, 3), tokens(7, 6)),
    LayerCase("embedding_padding", lambda: nn.Embedding(5, 3, padding_idx=2), tokens(5, 6)),
]

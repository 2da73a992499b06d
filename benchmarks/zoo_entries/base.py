"""What an entry of the zoo is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

Inputs = dict[str, Tensor]
"""Argument → one slice for each sample; `x0`, `x1`, … are passed without a name."""


@dataclass(frozen=True)
class Entry:
    """One model, small and with random weights.

    Args:
        build: makes it; the seed is set before.
        inputs: (n, generator) → its arguments.
        output: what the model returned → the tensor that the losses are made of; the first with n slices if left out.
        batch: samples in a timed step.
        losses_of: (model, inputs) → a loss per sample, where that of a task is to be compared.
    """

    family: str
    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, Generator], Inputs]
    output: Callable[[Any], Tensor] | None = None
    batch: int = 16
    losses_of: Callable[[nn.Module, Inputs], Tensor] | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build()

    def losses(self, model: nn.Module, inputs: Inputs) -> Tensor:
        """A loss per sample in which every output counts differently, or that of a task."""
        if self.losses_of is not None:
            return self.losses_of(model, inputs)
        args = [value for name, value in inputs.items() if name.startswith("x") and name[1:].isdigit()]
        kwargs = {
            name: value for name, value in inputs.items() if not (name.startswith("x") and name[1:].isdigit())
        }
        result = model(*args, **kwargs)
        n = len(next(iter(inputs.values())))
        flat = (self.output or (lambda r: first_output(r, n)))(result).flatten(1)
        signs = torch.arange(flat.shape[1], dtype=flat.dtype).add(1.0).sin()
        return (flat * signs + 0.1 * flat.square()).mean(1)


def first_output(result: Any, n: int) -> Tensor:
    """The first tensor with a gradient and one slice for each sample."""
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.requires_grad and leaf.dim() and len(leaf) == n:
            return leaf
    raise TypeError("no output with one slice for each sample")


def real(*shape: int) -> Callable[[int, Generator], Inputs]:
    """One normal tensor `[n, *shape]`."""
    return lambda n, g: {"x0": torch.randn(n, *shape, generator=g)}


def reals(*shapes: tuple[int, ...]) -> Callable[[int, Generator], Inputs]:
    """Several normal tensors."""
    return lambda n, g: {f"x{i}": torch.randn(n, *shape, generator=g) for i, shape in enumerate(shapes)}


def tokens(vocabulary: int, *shape: int) -> Callable[[int, Generator], Inputs]:
    """One tensor of integers `[n, *shape]`."""
    return lambda n, g: {"x0": torch.randint(0, vocabulary, (n, *shape), generator=g)}


class Call(nn.Module):
    """A model from a function of its parts."""

    def __init__(self, function: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)

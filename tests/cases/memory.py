"""The same numbers in other places of memory: what a layer is given, and the gradient that comes back to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

View = Callable[[Tensor], Tensor]


def _gaps(x: Tensor) -> Tensor:
    """Every other number of a larger tensor."""
    return torch.stack([x, x], -1)[..., 0]


def _channels_last(x: Tensor) -> Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x


def _samples_last(x: Tensor) -> Tensor:
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


def _repeated(x: Tensor) -> Tensor:
    """One row for all, without copies."""
    return x[:1].expand_as(x)


INPUTS: dict[str, View] = {
    "strided": _gaps,
    "channels_last": _channels_last,
    "transposed": _samples_last,
    "expanded": _repeated,
}
"""Views of an input."""

SAME_NUMBERS = {"strided", "channels_last", "transposed"}
"""Those that move no number."""


def _after_a_cat(out: Tensor) -> Tensor:
    """The gradient is a part of a wider one."""
    return torch.cat([out, out.detach()], -1)


def _summed(out: Tensor) -> Tensor:
    """The gradient repeats one number along a dimension, without copies."""
    return out.sum(1, keepdim=True) if out.dim() > 2 else out


OUTPUTS: dict[str, View] = {
    "strided": _after_a_cat,
    "channels_last": lambda out: out.movedim(1, -1).contiguous() if out.dim() > 2 else out,
    "transposed": lambda out: out.movedim(0, -1).contiguous().movedim(-1, 0),
    "expanded": _summed,
}
"""What is done to an output, so that its gradient is such a view."""

SAME_FUNCTION = {"transposed"}
"""Those after which the output is the same."""


class Compact(torch.autograd.Function):
    """The identity, whose gradient is made contiguous."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:  # noqa: ARG004
        return out.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0].contiguous()


class Viewed(nn.Module):
    """A model whose output's gradient is a view of the given kind.

    Args:
        compact: the same function with an ordinary gradient: torch's own InstanceNorm gives wrong ones (and its
            GroupNorm crashes) on some views of one sample.
    """

    def __init__(self, model: nn.Module, kind: str, *, compact: bool = False) -> None:
        super().__init__()
        self.model, self._after, self._compact = model, OUTPUTS[kind], compact

    def forward(self, *inputs: Tensor) -> Tensor:
        out: Tensor = self.model(*inputs)
        return self._after(Compact.apply(out) if self._compact else out)

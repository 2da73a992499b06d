"""Proves on a batch that no sample's output depends on another sample: what per-sample clipping rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from quietgrad._errors import PrivacyError
from quietgrad._kernels.generators import fork_generators

LossFunction = Callable[[Any], Tensor]


def check_independence(
    model: nn.Module, *inputs: Any, losses: LossFunction | None = None, dim: int = 0, output_dim: int = 0
) -> None:
    """Refuse a model in which output (or loss) i moves when sample j ≠ i is replaced.

    Every sample in turn is replaced by another one of the batch; all other outputs must keep their values up to
    rounding. Random layers draw the same numbers each time, and buffers are put back.

    Args:
        inputs: the model's arguments; every tensor whose size along `dim` is the first one's holds one row a sample.
        losses: output → losses `[n]`; without it the outputs themselves are compared along `output_dim`.

    Raises:
        PrivacyError: an output depends on another sample.
        ValueError: there are fewer than 2 samples, or no output has one row a sample.
    """
    first = next((leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)), None)
    if first is None or first.dim() <= dim or first.shape[dim] < 2:
        raise ValueError("Expected inputs with at least 2 samples: one must move while the other is watched.")
    n = first.shape[dim]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        before = list(_outputs(model, inputs, losses, output_dim))
        for moved in range(n):
            changed = pytree.tree_map_only(Tensor, partial(_moved, j=moved, n=n, dim=dim), inputs)
            for old, new in zip(before, _outputs(model, changed, losses, output_dim), strict=True):
                _compare(old, new, moved, n)
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def _outputs(model: nn.Module, inputs: Any, losses: LossFunction | None, dim: int) -> Iterator[Tensor]:
    with torch.no_grad(), fork_generators(_device_of(model)):
        torch.manual_seed(0)
        result = model(*inputs)
        result = result if losses is None else losses(result)
    for leaf in pytree.tree_leaves(result):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dim() > (0 if losses else dim):
            yield leaf if losses else leaf.movedim(dim, 0)


def _device_of(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _moved(x: Tensor, j: int, n: int, dim: int) -> Tensor:
    """Sample j replaced by its neighbour; floating-point samples are also flipped and shifted, so that they differ."""
    if x.dim() <= dim or x.shape[dim] != n:
        return x
    rows = x.movedim(dim, 0).clone()
    rows[j] = 0.5 - rows[(j + 1) % n] if x.is_floating_point() else rows[(j + 1) % n]
    return rows.movedim(0, dim)


def _compare(old: Tensor, new: Tensor, moved: int, n: int) -> None:
    if old.shape != new.shape or len(old) != n:
        raise ValueError(
            "Expected outputs with one row for each sample. Pass output_dim, or losses= to reduce the outputs to one "
            "loss per sample."
        )
    others = torch.arange(n, device=old.device) != moved
    tolerance = 1e-9 if old.dtype == torch.float64 else 1e-4
    near = torch.isclose(old[others], new[others], rtol=tolerance, atol=tolerance, equal_nan=True)
    close = near.reshape(n - 1, -1).all(1)
    if not bool(close.all()):
        # Which samples these are depends on their values, and the batch may be a private one.
        raise PrivacyError(
            "The output of a sample changed when another one was replaced: the model mixes the samples of a batch, so "
            "clipping one sample does not bound its influence. Look for BatchNorm (quietgrad.fix), attention or "
            "statistics across the batch."
        )

"""Gradients of convolution kernels: factored through patches that are only unfolded where that pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.base import BlockGrads, zero_rows
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.precision import row_squared_norms


@dataclass(frozen=True)
class Window:
    """How a kernel moves: everything but its weights. Inputs are already padded where padding is not zeros."""

    kernel: torch.Size
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class ConvGrad(BlockGrads):
    """Per-sample gradients of a kernel `[o, i/groups, *k]` from inputs and output gradients.

    Stable public attributes: inputs `[n, m, i, *space]`, backprops `[n, m, o, *space']` (m positions of the batch
    that belong to one sample, mostly 1), window. `factors()` unfolds them for groups = 1.

    Ways: `ghost` (Gram matrix of the unfolded patches, then one native weighted backward), `formed` (the samples
    folded into the groups of one native backward; kept), `chunked` (the same, a few samples at a time).
    """

    ways: ClassVar[tuple[str, ...]] = ("ghost", "formed", "chunked")

    def __init__(
        self,
        inputs: Float[Tensor, "n m i *space"],
        backprops: Float[Tensor, "n m o *space2"],
        window: Window,
        *,
        way: str | None = None,
        chunk: int | None = None,
    ) -> None:
        self.inputs, self.backprops, self.window = inputs, backprops, window
        self._chunk = chunk or max(1, (1 << 24) // max(1, math.prod(window.kernel)))
        self.way = self.rule() if way is None else way
        self._formed: Tensor | None = None
        self._unfolded: FactoredGrad | None = None

    def rule(self) -> str:
        """The way by counting multiplications, used when nothing may be measured."""
        t = self.backprops.shape[1] * math.prod(self.backprops.shape[3:])
        o, i = self.window.kernel[0], math.prod(self.window.kernel[1:])
        return "ghost" if self.window.groups == 1 and t * (i + o) < i * o else "chunked"

    @property
    def samples(self) -> int:
        return self.inputs.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.window.kernel

    def squared_norms(self) -> Float64[Tensor, " n"]:
        if self.way == "ghost":
            return self._factored().squared_norms()
        if self.way == "formed":
            return row_squared_norms(self._keep())
        return torch.cat([row_squared_norms(part) for _, part in self._chunks(self.inputs, self.backprops)])

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        dropped = weights == 0
        if self.way == "ghost":
            return self._factored().weighted_sum(weights)
        if self.way == "formed":
            rows = zero_rows(self._keep(), dropped)
            return (weights.to(rows.dtype) @ rows.flatten(1)).reshape(self.shape)
        total = self.inputs.new_zeros(self.shape)
        w = weights.to(total.dtype)
        for rows_, part in self._chunks(zero_rows(self.inputs, dropped), zero_rows(self.backprops, dropped)):
            total += (w[rows_] @ part.flatten(1)).reshape(self.shape)
        return total

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self._keep() if self._formed is not None else grouped(self.inputs, self.backprops, self.window)

    def factors(self) -> tuple[Float[Tensor, "n t i"], Float[Tensor, "n t o"]]:
        """(a, b): the patches `[n, t, in·kh·kw]` and output gradients `[n, t, out]`; only for groups = 1."""
        return self._factored().factors()

    def project(self, directions: Float[Tensor, "k *shape"]) -> Float[Tensor, "n k"]:
        flat = directions.flatten(1).T
        parts = [part.flatten(1) @ flat for _, part in self._chunks(self.inputs, self.backprops)]
        return torch.cat(parts) if parts else flat.new_zeros(0, len(directions))

    def weighted_sums(self, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
        total = self.inputs.new_zeros(len(weights), math.prod(self.shape))
        weights = weights.to(total.dtype)
        for rows, part in self._chunks(self.inputs, self.backprops):
            total += weights[:, rows] @ part.flatten(1)
        return total.reshape(-1, *self.shape)

    def _keep(self) -> Float[Tensor, "n *shape"]:
        if self._formed is None:
            self._formed = grouped(self.inputs, self.backprops, self.window)
        return self._formed

    def _factored(self) -> FactoredGrad:
        if self._unfolded is None:
            a, b = unfold(self.inputs, self.backprops, self.window)
            self._unfolded = FactoredGrad(a, b, self.shape, way="ghost")
        return self._unfolded

    def _chunks(self, inputs: Tensor, backprops: Tensor) -> Iterator[tuple[slice, Tensor]]:
        if self._formed is not None:
            yield slice(None), self._formed
            return
        for start in range(0, len(inputs), self._chunk):
            rows = slice(start, start + self._chunk)
            yield rows, grouped(inputs[rows], backprops[rows], self.window)


def grouped(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """All kernel gradients from one native backward: the samples become groups of one convolution."""
    n = len(inputs)
    if n == 0:
        return inputs.new_zeros(0, *window.kernel)
    kernel = inputs.new_empty(1).expand(n * window.kernel[0], *window.kernel[1:])
    gradient: Tensor = torch.ops.aten.convolution_backward(
        fold_samples(backprops), fold_samples(inputs), kernel, None, window.stride, window.padding,
        window.dilation, False, [0] * len(window.stride), n * window.groups, [False, True, False],
    )[1]  # fmt: skip
    return gradient.reshape(n, *window.kernel)


def fold_samples(x: Float[Tensor, "n m c *space"]) -> Float[Tensor, "m nc *space"]:
    """Samples into channels."""
    return x.transpose(0, 1).flatten(1, 2)


def unfold(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> tuple[Float[Tensor, "n t k"], Float[Tensor, "n t o"]]:
    """Patches and output gradients in the layout `[n, t, features]`."""
    if window.groups != 1:
        raise ValueError("Expected a convolution with groups=1: a grouped kernel has no [out, in] factors.")
    n, dims = len(inputs), len(window.stride)
    pads = [side for pad in reversed(window.padding) for side in (pad, pad)]
    patches = F.pad(inputs, pads)
    for axis in range(dims):
        size, step = window.kernel[2 + axis], window.stride[axis]
        reach = (size - 1) * window.dilation[axis] + 1
        patches = patches.unfold(3 + axis, reach, step)[..., :: window.dilation[axis]]
    spatial, taps = list(range(3, 3 + dims)), list(range(3 + dims, 3 + 2 * dims))
    a = patches.permute(0, 1, *spatial, 2, *taps).reshape(n, -1, math.prod(window.kernel[1:]))
    return a, backprops.movedim(2, -1).reshape(n, -1, window.kernel[0])

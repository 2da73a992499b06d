"""Gradients of convolution kernels: factored through patches that are only unfolded where that pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad.gradients.base import zero_rows
from quietgrad.gradients.factored import FactoredGrad
from quietgrad.gradients.gram import GramNorms, gram_norms
from quietgrad.gradients.norms import row_squared_norms
from quietgrad.gradients.patches import Window, from_rows, pixel_gram, unfold, unfold_rows
from quietgrad.gradients.tuning import TunableGrads, rounded

GHOSTS = ("ghost", "pixels")
KEPT = ("grouped", "patches")
WAYS = (*GHOSTS, *KEPT, "chunked")
IN_CACHE = 1 << 21
"""Bytes of patches that are unfolded at a time."""
FEW_CHANNELS = 4


class ConvGrad(TunableGrads):
    """Per-sample gradients of a kernel `[o, i/groups, *k]` from inputs and output gradients.

    Stable public attributes: inputs `[n, m, i, *space]`, backprops `[n, m, o, *space']` (m positions of the batch
    that belong to one sample, mostly 1), window. `factors()` unfolds them for groups = 1.

    Ways to norms and sums:
        ghost   the Gram norm of the patches, then one native backward on weighted output gradients.
        pixels  the same, the patches' Gram matrix from that of the pixels.
        grouped every gradient from one native backward, the samples folded into its groups; kept.
        patches every gradient as a product of unfolded patches; kept.
        chunked every gradient as in `grouped`, a few samples at a time and dropped again.
    """

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
        self._chunk = chunk or max(1, (1 << 22) // max(1, math.prod(window.kernel)))
        self.way = self.rule() if way is None else way
        assert self.way in WAYS, self.way
        self._formed: Tensor | None = None
        self._gram: GramNorms | None = None

    @property
    def samples(self) -> int:
        return self.inputs.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.window.kernel

    @property
    def positions(self) -> int:
        """t: places where the kernel is applied to one sample."""
        return self.backprops.shape[1] * math.prod(self.backprops.shape[3:])

    def factors(self) -> tuple[Float[Tensor, "n t i"], Float[Tensor, "n t o"]]:
        """(a, b): the patches `[n, t, in·kh·kw]` and output gradients `[n, t, out]`; only for groups = 1."""
        if self.window.groups != 1:
            raise ValueError(
                "Expected a convolution with groups=1: a grouped kernel has no [out, in] factors."
            )
        return unfold(self.inputs, self.window), self._outputs().transpose(1, 2)

    def factored(self) -> FactoredGrad:
        """The same gradients as a FactoredGrad of the same shape."""
        return FactoredGrad(*self.factors(), self.shape)

    # ---- ways -----------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def rule(self) -> str:
        t, o, i = self.positions, self.window.kernel[0], self.window.taps
        return "ghost" if self.window.groups == 1 and t * (i + o) < i * o else "chunked"

    def held(self) -> dict[str, int]:
        size, t = self.inputs.element_size(), self.positions
        formed = self.samples * math.prod(self.shape) * size
        ways = {"grouped": formed, "chunked": 0}
        if self.window.groups == 1:
            patches = self.samples * t * self.window.taps * size
            if self.window.dims == 2 and patches < (1 << 28):
                ways["patches"] = formed
            if self.samples * t * t * size < (1 << 27):
                ways["ghost"] = 0
            pixels = math.prod(self.inputs.shape[3:])
            if (
                self.window.dims == 2
                and self.inputs.shape[1] == 1
                and self.samples * pixels**2 * size < (1 << 27)
            ):
                ways["pixels"] = 0
        return ways

    def through(self, way: str, chunk: int | None = None) -> ConvGrad:
        return ConvGrad(self.inputs, self.backprops, self.window, way=way, chunk=chunk)

    def signature(self) -> tuple[Any, ...]:
        return (rounded(self.samples), *self.inputs.shape[1:], self.window, self.inputs.dtype)

    # ---- norms and sums -------------------------------------------------------------------------------------

    def squared_norms(self) -> Float64[Tensor, " n"]:
        if self.way in GHOSTS:
            return self._ghost().with_formed(lambda careful: self._rows(careful).squared_norms())
        if self.way in KEPT:
            return row_squared_norms(self._keep())
        parts = [row_squared_norms(part) for _, part in self._chunks(self.inputs, self.backprops)]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        dropped = weights == 0
        if self.way in GHOSTS:
            careful = self._ghost().careful
            total = self._native_sum(weights, dropped | careful)
            return (
                total + self._rows(careful).weighted_sum(weights[careful]) if bool(careful.any()) else total
            )
        if self.way in KEPT:
            rows = zero_rows(self._keep(), dropped).flatten(1)
            return self._shaped(weights.to(rows.dtype) @ rows)
        total = self.inputs.new_zeros(self.shape)
        w = weights.to(total.dtype)
        for places, part in self._chunks(zero_rows(self.inputs, dropped), zero_rows(self.backprops, dropped)):
            total += (w[places] @ part.flatten(1)).reshape(self.shape)
        return total

    def dense(self) -> Float[Tensor, "n *shape"]:
        if self._formed is not None:
            return self._shaped(self._formed)
        return form(self.inputs, self.backprops, self.window)

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

    def _outputs(self) -> Float[Tensor, "n o t"]:
        return positions_last(self.backprops)

    def _ghost(self) -> GramNorms:
        if self._gram is None:
            if self.way == "pixels":
                inputs = pixel_gram(self.inputs, self.window)
            else:
                flat = unfold_rows if self.window.dims == 2 else unfold
                patches = flat(self.inputs, self.window)
                inputs = torch.bmm(patches, patches.transpose(1, 2))
            b = self._outputs()
            outputs = torch.bmm(b.transpose(1, 2), b)
            self._gram = gram_norms(inputs, outputs, longest=max(self.window.taps, self.window.kernel[0]))
        return self._gram

    def _rows(self, chosen: Bool[Tensor, " n"]) -> ConvGrad:
        """Rows whose positions cancel: in a batched backward they would add mostly rounding, so they are formed."""
        return ConvGrad(
            self.inputs[chosen], self.backprops[chosen], self.window, way="chunked", chunk=self._chunk
        )

    def _native_sum(self, weights: Float[Tensor, " n"], dropped: Bool[Tensor, " n"]) -> Tensor:
        inputs, backprops = zero_rows(self.inputs, dropped), zero_rows(self.backprops, dropped)
        w = weights.to(backprops.dtype).view(-1, *[1] * (backprops.dim() - 1))
        return weight_backward(inputs.flatten(0, 1), (backprops * w).flatten(0, 1), self.window, 1)

    def _keep(self) -> Tensor:
        """Formed and kept; by `patches` with the taps in the order of `unfold_rows`."""
        if self._formed is None:
            make = by_patches if self.way == "patches" else grouped
            self._formed = make(self.inputs, self.backprops, self.window)
        return self._formed

    def _shaped(self, gradient: Tensor) -> Tensor:
        """A kept gradient (or sum of them) in the kernel's own order."""
        if self.way != "patches":
            return gradient.reshape(*gradient.shape[:-1], *self.shape) if gradient.dim() < 3 else gradient
        lead = gradient.shape[:1] if gradient.dim() == 3 else ()
        return from_rows(gradient.reshape(*lead, self.shape[0], -1), self.window).contiguous()

    def _chunks(self, inputs: Tensor, backprops: Tensor) -> Iterator[tuple[slice, Tensor]]:
        for start in range(0, len(inputs), self._chunk):
            rows = slice(start, start + self._chunk)
            yield rows, form(inputs[rows], backprops[rows], self.window)


def form(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """All kernel gradients. torch's grouped backward is slow on few input channels (images)."""
    if window.dims == 2 and window.groups == 1 and window.kernel[1] <= FEW_CHANNELS and len(inputs):
        return from_rows(by_patches(inputs, backprops, window), window).contiguous()
    return grouped(inputs, backprops, window)


def by_patches(
    inputs: Float[Tensor, "n m i h w"], backprops: Float[Tensor, "n m o h2 w2"], window: Window
) -> Float[Tensor, "n o taps"]:
    """All kernel gradients, taps as in `unfold_rows`, a few samples at a time: their patches are still in the cache
    when they are multiplied."""
    outputs = positions_last(backprops)
    formed = outputs.new_empty(len(inputs), window.kernel[0], window.taps)
    step = max(1, IN_CACHE // max(1, outputs.shape[2] * window.taps * inputs.element_size()))
    for start in range(0, len(inputs), step):
        rows = slice(start, start + step)
        torch.bmm(outputs[rows], unfold_rows(inputs[rows], window), out=formed[rows])
    return formed


def positions_last(backprops: Float[Tensor, "n m o *space"]) -> Float[Tensor, "n o t"]:
    """A view where m = 1: a transposed copy would cost as much as a product."""
    return backprops.transpose(1, 2).flatten(2)


def grouped(
    inputs: Float[Tensor, "n m i *space"], backprops: Float[Tensor, "n m o *space2"], window: Window
) -> Float[Tensor, "n *kernel"]:
    """All kernel gradients from one native backward: the samples become groups of one convolution."""
    n = len(inputs)
    if n == 0:
        return inputs.new_zeros(0, *window.kernel)
    gradient = weight_backward(fold_samples(inputs), fold_samples(backprops), window, n)
    return gradient.reshape(n, *window.kernel)


def fold_samples(x: Float[Tensor, "n m c *space"]) -> Float[Tensor, "m nc *space"]:
    """Samples into channels."""
    return x.transpose(0, 1).flatten(1, 2)


def weight_backward(
    inputs: Float[Tensor, "m ni *space"],
    backprops: Float[Tensor, "m no *space2"],
    window: Window,
    copies: int,
) -> Float[Tensor, "no *rest"]:
    """torch's own weight gradient of `copies` convolutions side by side."""
    kernel = inputs.new_empty(1).expand(copies * window.kernel[0], *window.kernel[1:])
    gradient: Tensor = torch.ops.aten.convolution_backward(
        backprops,
        inputs,
        kernel,
        None,
        window.stride,
        window.padding,
        window.dilation,
        False,
        [0] * window.dims,
        copies * window.groups,
        [False, True, False],
    )[1]
    return gradient

"""Gradients of convolution kernels: factored through patches that are only unfolded where that pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.gram import GramNorms, gram_norms
from quietgrad._gradients.kept_kernels import KeptKernels, in_kernel_order
from quietgrad._gradients.kernel_gradients import (
    by_patches,
    form,
    form_in_groups,
    kernel_gradients,
    patch_products,
    patches_of,
    positions_last,
)
from quietgrad._gradients.row_arithmetic import (
    at_least_single,
    row_squared_norms,
    weighted_rows,
)
from quietgrad._gradients.tuning import TunableGrads, round_to_power_of_two
from quietgrad._kernels.patches import Window, from_rows, pixel_gram, unfold

GHOSTS = ("ghost", "pixels")
KEPT = ("grouped", "patches", "direct")
ALGORITHMS = (*GHOSTS, *KEPT, "chunked")


class ConvGrad(TunableGrads):
    """Per-sample gradients of a kernel `[o, i/groups, *k]` from inputs and output gradients.

    Stable public attributes: inputs `[n, m, i, *space]`, backprops `[n, m, o, *space']` (m positions of the batch
    that belong to one sample, mostly 1), window. `factors()` unfolds them for groups = 1.

    Algorithms for norms and sums:
        ghost   the Gram norm of the patches, then products of patches and weighted output gradients.
        pixels  the same, the patches' Gram matrix from that of the pixels.
        grouped every gradient from one native backward, the samples folded into its groups; kept.
        patches every gradient as a product of unfolded patches; kept.
        direct  every gradient by a kernel that norms it too; kept.
        chunked every gradient as in `grouped`, a few samples at a time and dropped again.
    """

    def __init__(
        self,
        inputs: Float[Tensor, "n m i *space"],
        backprops: Float[Tensor, "n m o *space2"],
        window: Window,
        *,
        algorithm: str | None = None,
        chunk: int | None = None,
    ) -> None:
        self.inputs, self.backprops, self.window = at_least_single(inputs), at_least_single(backprops), window
        self._chunk = chunk or max(1, (1 << 22) // max(1, math.prod(window.kernel)))
        self.algorithm = self.rule() if algorithm is None else algorithm
        assert self.algorithm in ALGORITHMS, self.algorithm
        self._formed: Tensor | None = None
        self._squared: Tensor | None = None
        self._gram: GramNorms | None = None

    @property
    def samples(self) -> int:
        return self.inputs.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.window.kernel

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs.dtype

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

    def as_factored(self) -> FactoredGrad:
        """The same gradients as a FactoredGrad of the same shape."""
        return FactoredGrad(*self.factors(), self.shape)

    # ---- algorithms -----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.inputs.device

    def rule(self) -> str:
        # A convolution is a matrix product of patches [t, i·kh·kw] with the flattened kernel, so the rule of
        # `FactoredGrad` holds. Grouped kernels are block-diagonal and have no such factors.
        t, o, i = self.positions, self.window.kernel[0], self.window.taps
        return "ghost" if self.window.groups == 1 and t * (i + o) < i * o else "chunked"

    def memory_cost(self) -> dict[str, int]:
        size, t = self.inputs.element_size(), self.positions
        formed = self.samples * math.prod(self.shape) * size
        algorithms = {"grouped": formed, "chunked": 0}
        if kernel_gradients.find_kernel(self.inputs, self.backprops, self.window) is not None:
            algorithms["direct"] = formed
        if self.window.groups == 1:
            # Limits on what is unfolded for a moment: 256 MB of patches, 128 MB of Gram matrices. Beyond them an
            # algorithm is not offered, since a trial alone would be the peak of the step.
            patches = self.samples * t * self.window.taps * size
            if self.window.dims == 2 and patches < (1 << 28):
                algorithms["patches"] = formed
            if self.samples * t * t * size < (1 << 27):
                algorithms["ghost"] = 0
            pixels = math.prod(self.inputs.shape[3:])
            if (
                self.window.dims == 2
                and self.inputs.shape[1] == 1
                and self.samples * pixels**2 * size < (1 << 27)
            ):
                algorithms["pixels"] = 0
        return algorithms

    def with_algorithm(self, algorithm: str, chunk: int | None = None) -> ConvGrad:
        return ConvGrad(self.inputs, self.backprops, self.window, algorithm=algorithm, chunk=chunk)

    def work(self) -> dict[str, float]:
        t, o, taps = self.positions, self.window.kernel[0], self.window.taps
        pixels, channels = math.prod(self.inputs.shape[3:]), self.inputs.shape[2]
        product = float(t * o * taps)
        return {
            "ghost": t * t * (o + taps) + product,
            "pixels": pixels * pixels * channels + t * t * (o + sum(self.window.kernel[2:])) + product,
            "grouped": product,
            "patches": product,
            "direct": product,
            "chunked": 2 * product,
        }

    def first(self, count: int) -> ConvGrad:
        few = self.inputs[:count], self.backprops[:count]
        return ConvGrad(*few, self.window, algorithm=self.algorithm, chunk=self._chunk)

    def signature(self) -> tuple[Any, ...]:
        return (round_to_power_of_two(self.samples), *self.inputs.shape[1:], self.window, self.inputs.dtype)

    # ---- norms and sums -------------------------------------------------------------------------------------

    def squared_norms(self) -> Float64[Tensor, " n"]:
        if self.algorithm in GHOSTS:
            return self._ghost().with_formed(lambda careful: self._rows(careful).squared_norms())
        if self.algorithm in KEPT:
            formed = self._keep()
            return row_squared_norms(formed) if self._squared is None else self._squared
        parts = [row_squared_norms(part) for _, part in self.chunks()]
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        if self.algorithm in GHOSTS:
            if not self._ghost().cancels:
                return self._matmul_sum(weights)
            careful = self._ghost().careful
            total = self._matmul_sum(weights.masked_fill(careful, 0.0))
            return total + self._rows(careful).weighted_sum(weights[careful])
        if self.algorithm in KEPT:
            return in_kernel_order(
                weighted_rows(weights, self._keep().flatten(1)), self.window, self.algorithm
            )
        total = self.inputs.new_zeros(math.prod(self.shape), dtype=torch.float64)
        for places, part in self.chunks():
            total += weighted_rows(weights[places], part.flatten(1))
        return total.reshape(self.shape)

    def dense(self) -> Float[Tensor, "n *shape"]:
        if self._formed is not None:
            return in_kernel_order(self._formed, self.window, self.algorithm)
        return form(self.inputs, self.backprops, self.window)

    def scale(
        self,
        *,
        left: Float[Tensor, "o ..."] | None = None,
        right: Float[Tensor, "i ..."] | None = None,
    ) -> BlockGrads:
        """Patches are unfolded for `right`; a grouped kernel has no factors and is formed."""
        if self.window.groups != 1:
            return super().scale(left=left, right=right)
        return self.as_factored().scale(left=left, right=right)

    def drop_factors(self) -> BlockGrads:
        if self.algorithm in KEPT:
            return KeptKernels(self._keep(), self.squared_norms(), self.window, self.algorithm)
        if self.algorithm in GHOSTS:
            self._ghost()
        return self

    @property
    def layer_inputs(self) -> Tensor | None:
        return self.inputs

    # ---- parts ----------------------------------------------------------------------------------------------

    def _outputs(self) -> Float[Tensor, "n o t"]:
        return positions_last(self.backprops)

    def _ghost(self) -> GramNorms:
        if self._gram is None:
            if self.algorithm == "pixels":
                # Both branches give the Gram matrix of the patches. From pixels it takes fewer multiplications where
                # a kernel is large and its stride small, because every pixel is in many patches.
                inputs = pixel_gram(self.inputs, self.window)
            else:
                patches = patches_of(self.inputs, self.window)
                inputs = torch.bmm(patches, patches.transpose(1, 2))
            b = self._outputs()
            outputs = torch.bmm(b.transpose(1, 2), b)
            inner = self.window.taps + self.window.kernel[0]
            self._gram = gram_norms(inputs, outputs, inner=inner, terms=inner, dtype=inputs.dtype)
        return self._gram

    def _rows(self, chosen: Bool[Tensor, " n"]) -> ConvGrad:
        """Rows whose positions cancel: in a batched backward they would add mostly rounding, so they are formed."""
        return ConvGrad(
            self.inputs[chosen], self.backprops[chosen], self.window, algorithm="chunked", chunk=self._chunk
        )

    def _matmul_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        # Taps come out with the channels last, the order in which whole stretches of a picture can be copied.
        total = patch_products(self.inputs, self.backprops, weights, self.window)
        if self.window.dims != 2:
            return total.reshape(self.shape)
        return from_rows(total, self.window).contiguous()

    def _keep(self) -> Tensor:
        """Formed and kept, with the norms where they come with it."""
        if self._formed is None and self.algorithm == "direct":
            self._formed, self._squared = kernel_gradients(self.inputs, self.backprops, self.window)
        elif self._formed is None:
            make = by_patches if self.algorithm == "patches" else form_in_groups
            self._formed = make(self.inputs, self.backprops, self.window)
        return self._formed

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """The gradients formed a few samples at a time, each with the rows that it holds."""
        for start in range(0, self.samples, self._chunk):
            rows = slice(start, start + self._chunk)
            yield rows, form(self.inputs[rows], self.backprops[rows], self.window)

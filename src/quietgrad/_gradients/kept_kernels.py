"""Gradients of convolution kernels that are formed and normed already, in the order in which an algorithm left them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.row_arithmetic import weighted_rows
from quietgrad._kernels.patches import Window, from_rows

CHANNELS_LAST = ("patches", "direct")
"""Algorithms whose gradients have the taps in the order of `unfold_rows`."""


class KeptKernels(BlockGrads):
    """What is left of a `ConvGrad` once its gradients are formed: neither inputs nor output gradients are kept.

    Args:
        rows: as the algorithm left them.
        squared: their squared norms, never below the truth.
    """

    def __init__(
        self, rows: Float[Tensor, "n *formed"], squared: Float64[Tensor, " n"], window: Window, algorithm: str
    ) -> None:
        self._rows, self._squared, self._window, self.algorithm = rows, squared, window, algorithm

    @property
    def samples(self) -> int:
        return self._rows.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self._window.kernel

    @property
    def dtype(self) -> torch.dtype:
        return self._rows.dtype

    @property
    def device(self) -> torch.device:
        return self._rows.device

    @property
    def matrices(self) -> Float[Tensor, "n o m"]:
        """The gradients as they were left, one matrix a sample."""
        return self._rows.reshape(self.samples, self.shape[0], -1)

    def order(self) -> Int[Tensor, " p"]:
        """Where each coordinate of the kernel is in a flattened row of `matrices`."""
        places = torch.arange(self.shape.numel(), device=self.device)
        return in_kernel_order(places, self._window, self.algorithm).flatten()

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self._squared

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        return in_kernel_order(weighted_rows(weights, self._rows.flatten(1)), self._window, self.algorithm)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return in_kernel_order(self._rows, self._window, self.algorithm)

    @property
    def row_bytes(self) -> float:
        return self.shape.numel() * self._rows.element_size()


def in_kernel_order(gradient: Tensor, window: Window, algorithm: str) -> Tensor:
    """Put a kept gradient, or a sum of them, into the kernel's own order."""
    if algorithm not in CHANNELS_LAST:
        return gradient.reshape(*gradient.shape[:-1], *window.kernel) if gradient.dim() < 3 else gradient
    lead = gradient.shape[:1] if gradient.dim() == 3 else ()
    return from_rows(gradient.reshape(*lead, window.kernel[0], -1), window).contiguous()

"""Per-sample gradients of which only some coordinates are kept, without forming the others where that is possible."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Positions
from quietgrad._gradients.row_arithmetic import as_rows
from quietgrad._kernels.rounding import slack


class WholeNormGrad(BlockGrads):
    """The kept coordinates of a block, whose norm is counted over the *whole* block.

    A clip by this norm followed by the sum of the kept coordinates is "clip, then mask": the norm is never below that
    of what is summed, so the clip's sensitivity holds as it is.

    Args:
        kept: None keeps all of them, as a vector.
    """

    def __init__(self, block: BlockGrads, kept: Positions | None) -> None:
        self.block, self._kept = block, kept

    @property
    def algorithm(self) -> str:  # type: ignore[override]
        return self.block.algorithm

    @property
    def samples(self) -> int:
        return self.block.samples

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.block.shape.numel() if self._kept is None else len(self._kept),))

    @property
    def dtype(self) -> torch.dtype:
        return self.block.dtype

    @property
    def device(self) -> torch.device:
        return self.block.device

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self.block.squared_norms()

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, " kept"]:
        total = self.block.weighted_sum(weights).flatten()
        return total if self._kept is None else total[self._kept]

    def dense(self) -> Float[Tensor, "n kept"]:
        rows = as_rows(self.block.dense())
        return rows if self._kept is None else rows.index_select(1, self._kept)

    def in_short_runs(self) -> WholeNormGrad:
        return WholeNormGrad(self.block.in_short_runs(), self._kept)

    @property
    def layer_inputs(self) -> Tensor | None:
        return self.block.layer_inputs


class RestrictedOuterGrad(BlockGrads):
    """Kept entries of G_n = b aᵀ, one position a sample: ‖M⊙G‖² = (b²)ᵀ M (a²), nothing formed.

    Args:
        block: holds G.
        a, b: its factors.
    """

    algorithm = "outer"

    def __init__(
        self, block: BlockGrads, a: Float[Tensor, "n i"], b: Float[Tensor, "n o"], kept: Positions
    ) -> None:
        self._block, self._a, self._b, self._kept = block, a, b, kept

    @property
    def samples(self) -> int:
        return self._block.samples

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self._kept),))

    @property
    def dtype(self) -> torch.dtype:
        return self._block.dtype

    @property
    def device(self) -> torch.device:
        return self._block.device

    def squared_norms(self) -> Float64[Tensor, " n"]:
        # float64: the square of a small factor underflows in float32 and may meet a large one in the other factor.
        a, b = self._a.double().square(), self._b.double().square()
        mask = a.new_zeros(b.shape[1] * a.shape[1])
        mask[self._kept] = 1.0
        products = ((b @ mask.view(b.shape[1], a.shape[1])) * a).sum(1)
        return products * (1 + slack(torch.float64, len(self._kept)))

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, " kept"]:
        return self._block.weighted_sum(weights).flatten()[self._kept]

    def dense(self) -> Float[Tensor, "n kept"]:
        inputs = self._a.shape[1]
        outputs = torch.div(self._kept, inputs, rounding_mode="floor")
        return self._a.index_select(1, self._kept - outputs * inputs) * self._b.index_select(1, outputs)

    def in_short_runs(self) -> RestrictedOuterGrad:
        return RestrictedOuterGrad(self._block.in_short_runs(), self._a, self._b, self._kept)

    @property
    def layer_inputs(self) -> Tensor | None:
        return self._block.layer_inputs


def whole_rows(kept: Positions, shape: torch.Size) -> Positions | None:
    """The output channels whose coordinates are exactly those kept, or None; `kept` is sorted."""
    width = shape[1:].numel()
    if len(shape) < 2 or width == 0 or len(kept) % width:
        return None
    first, last = kept.view(-1, width)[:, 0], kept.view(-1, width)[:, -1]
    if bool((first % width != 0).any()) or bool((last - first != width - 1).any()):
        return None
    return torch.div(first, width, rounding_mode="floor")

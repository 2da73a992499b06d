"""Per-sample gradients of which only some coordinates are kept: the two kinds of blocks that masks make."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Positions
from quietgrad._gradients.row_arithmetic import as_rows
from quietgrad._kernels.rounding import slack


class KeptCoordinates(BlockGrads):
    """Some coordinates of another block, as a vector.

    Args:
        kept: None keeps all of them.
    """

    def __init__(self, block: BlockGrads, kept: Positions | None) -> None:
        self.block, self.kept = block, kept

    @property
    def samples(self) -> int:
        return self.block.samples

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.block.shape.numel() if self.kept is None else len(self.kept),))

    @property
    def dtype(self) -> torch.dtype:
        return self.block.dtype

    @property
    def device(self) -> torch.device:
        return self.block.device

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, " kept"]:
        total = self.block.weighted_sum(weights).flatten()
        return total if self.kept is None else total[self.kept]

    @property
    def layer_inputs(self) -> Tensor | None:
        return self.block.layer_inputs


class WholeNormGrad(KeptCoordinates):
    """The kept coordinates of a block, whose norm is counted over the *whole* block.

    A clip by this norm followed by the sum of the kept coordinates is "clip, then mask": the norm is never below that
    of what is summed, so the clip's sensitivity holds as it is.
    """

    @property
    def algorithm(self) -> str:  # type: ignore[override]
        return self.block.algorithm

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return self.block.squared_norms()

    def dense(self) -> Float[Tensor, "n kept"]:
        rows = as_rows(self.block.dense())
        return rows if self.kept is None else rows.index_select(1, self.kept)


class RestrictedOuterGrad(KeptCoordinates):
    """Kept entries of G_n = b aᵀ, one position a sample: ‖M⊙G‖² = (b²)ᵀ M (a²), nothing formed.

    Args:
        block: holds G.
        a, b: its factors.
    """

    algorithm = "outer"
    kept: Positions

    def __init__(
        self, block: BlockGrads, a: Float[Tensor, "n i"], b: Float[Tensor, "n o"], kept: Positions
    ) -> None:
        super().__init__(block, kept)
        self.a, self.b = a, b

    def squared_norms(self) -> Float64[Tensor, " n"]:
        # float64: the square of a small factor underflows in float32 and may meet a large one in the other factor.
        a, b = self.a.double().square(), self.b.double().square()
        mask = a.new_zeros(b.shape[1] * a.shape[1])
        mask.index_fill_(0, self.kept, 1.0)
        products = ((b @ mask.view(b.shape[1], a.shape[1])) * a).sum(1)
        return products * (1 + slack(torch.float64, len(self.kept)))

    def dense(self) -> Float[Tensor, "n kept"]:
        inputs = self.a.shape[1]
        outputs = torch.div(self.kept, inputs, rounding_mode="floor")
        return self.a.index_select(1, self.kept - outputs * inputs) * self.b.index_select(1, outputs)

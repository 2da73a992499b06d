"""The scaling of one matrix, P = (A/ā + d·I)^(-p), and what it does to per-sample gradients and to a release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.convolution import ConvGrad
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.row_arithmetic import each_times
from quietgrad._representations.preconditioned.moments import Moments

Sides = Literal["input", "both"]


@dataclass(frozen=True)
class Scale:
    """left · G · right of a matrix `[o, i]`; with a bias, of `[o, i + 1]` whose last column is the bias.

    Args:
        left, right: a diagonal or a symmetric matrix; None is the identity.
        with_bias: whether `right` has a row and a column for the bias.
        spread: the largest over the mean eigenvalue of the inputs' second moment, before and after scaling.
    """

    left: Float[Tensor, "o ..."] | None
    right: Float[Tensor, "i ..."] | None
    with_bias: bool = False
    spread: tuple[float, float] = (1.0, 1.0)

    def times(self, factor: float) -> Scale:
        """The same scaling, longer or shorter."""
        if self.right is not None:
            return Scale(self.left, factor * self.right, self.with_bias, self.spread)
        assert self.left is not None
        return Scale(factor * self.left, None, self.with_bias, self.spread)

    def squared_norm(self, shape: torch.Size) -> float:
        """The squared length that noise of one unit a coordinate has after scaling, in expectation."""
        rows, columns = shape[0], shape[1:].numel() + self.with_bias
        return _squared(self.left, rows) * _squared(self.right, columns)

    # ---- one sample's gradient ------------------------------------------------------------------------------

    def encode(self, block: BlockGrads, bias: BlockGrads | None) -> tuple[BlockGrads, BlockGrads | None]:
        """Scale every sample's gradient, on factors where there are some."""
        if not self.with_bias:
            return block.scale(left=self.left, right=self.right), bias
        assert bias is not None
        if isinstance(block, ConvGrad) and block.window.groups == 1:
            block = block.as_factored()
        if isinstance(block, FactoredGrad):
            return self._encode_factors(block)
        return self._encode_rows(block, bias)

    def _encode_factors(self, block: FactoredGrad) -> tuple[BlockGrads, BlockGrads]:
        """[a; 1]·P has i columns for the weight and one for the bias: two maps of the same inputs."""
        assert self.right is not None
        a, right = block.a, self.right.to(block.a)
        weight, column = right[:-1, :-1], right[:-1, -1]
        shift, unit = right[-1, :-1], right[-1, -1]
        mapped = FactoredGrad(
            torch.baddbmm(shift.expand(len(a), 1, -1), a, weight.expand(len(a), -1, -1)), block.b, block.shape
        ).scale(left=self.left)
        share = each_times(a, column[:, None]) + unit  # [n, t, 1]
        return mapped, DenseGrad(torch.bmm(share.transpose(1, 2), mapped.b)[:, 0])

    def _encode_rows(self, block: BlockGrads, bias: BlockGrads) -> tuple[BlockGrads, BlockGrads]:
        rows = torch.cat([block.dense().flatten(2), bias.dense()[:, :, None]], 2)
        scaled = DenseGrad(rows).scale(left=self.left, right=self.right).rows
        return DenseGrad(scaled[:, :, :-1].reshape(-1, *block.shape)), DenseGrad(scaled[:, :, -1])

    # ---- a release ------------------------------------------------------------------------------------------

    def apply(self, block: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Scale one matrix and its bias."""
        matrix = block.reshape(len(block), -1)
        if not self.with_bias:
            return _multiply(matrix, self.left, self.right).reshape(block.shape), bias
        assert bias is not None
        scaled = _multiply(torch.cat([matrix, bias[:, None]], 1), self.left, self.right)
        return scaled[:, :-1].reshape(block.shape), scaled[:, -1]

    # ---- a checkpoint ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Plain data, which `restore` reads."""
        return {"left": self.left, "right": self.right, "bias": self.with_bias, "spread": list(self.spread)}

    @classmethod
    def restore(cls, saved: dict[str, Any]) -> Scale:
        """The scaling that `state` saved."""
        before, after = saved["spread"]
        return cls(saved["left"], saved["right"], saved["bias"], (before, after))


def scale_of(moments: Moments, *, power: float, damping: float, sides: Sides, like: Tensor) -> Scale:
    """Make the scaling of one matrix from the moments of its probes."""
    if moments.inputs.dim() == 1:
        counts = moments.inputs / moments.inputs.mean().clamp_min(1e-300)
        scales = (counts + damping) ** -power
        after = counts * scales.square()
        spread = (float(counts.max()), float(after.max() / after.mean()))
        right = _root(moments.outputs, power, damping)[0] if sides == "both" else None
        return Scale(scales.to(like), None if right is None else right.to(like), spread=spread)
    inputs, spread = _root(moments.inputs, power, damping)
    outputs = _root(moments.outputs, power, damping)[0].to(like) if sides == "both" else None
    if moments.swapped:
        return Scale(inputs.to(like), outputs, spread=spread)
    return Scale(outputs, inputs.to(like), moments.with_bias, spread)


def _root(
    moment: Float64[Tensor, "d d"], power: float, damping: float
) -> tuple[Float64[Tensor, "d d"], tuple[float, float]]:
    """(M/m + d·I)^(-p) with m the mean eigenvalue of M, and the spread of eigenvalues before and after."""
    mean = moment.trace() / len(moment)
    values, vectors = torch.linalg.eigh(moment / mean if mean > 0 else moment)
    values = values.clamp_min(0.0)
    scales = (values + damping) ** -power
    after = values * scales.square()
    spread = (float(values.max()), float(after.max() / after.mean().clamp_min(1e-300)))
    return (vectors * scales) @ vectors.T, spread


def _multiply(matrix: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    if right is not None:
        right = right.to(matrix)
        matrix = matrix * right if right.dim() == 1 else matrix @ right
    if left is not None:
        left = left.to(matrix)
        matrix = matrix * left[:, None] if left.dim() == 1 else left @ matrix
    return matrix


def _squared(scale: Tensor | None, size: int) -> float:
    return float(size) if scale is None else float(scale.double().square().sum())

"""Gradients that are formed: norms, biases, the fallback, and whatever else is small."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad.gradients.base import BlockGrads, zero_rows
from quietgrad.gradients.precision import row_squared_norms


class DenseGrad(BlockGrads):
    """All n gradients as one tensor `[n, *shape]` (public attribute `rows`)."""

    def __init__(self, rows: Float[Tensor, "n *shape"]) -> None:
        self.rows = rows

    @property
    def samples(self) -> int:
        return self.rows.shape[0]

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape[1:]

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return row_squared_norms(self.rows)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        rows = zero_rows(self.rows, weights == 0)
        return (weights.to(rows.dtype) @ rows.flatten(1)).reshape(self.shape)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self.rows


class ZeroGrad(BlockGrads):
    """The gradient of a parameter that the losses do not depend on."""

    def __init__(self, samples: int, like: Tensor) -> None:
        self._samples = samples
        self._like = like.detach()

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def shape(self) -> torch.Size:
        return self._like.shape

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return torch.zeros(self._samples, dtype=torch.float64, device=self._like.device)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        return torch.zeros_like(self._like)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self._like.new_zeros(self._samples, *self._like.shape)

    def project(self, directions: Float[Tensor, "k *shape"]) -> Float[Tensor, "n k"]:
        return self._like.new_zeros(self._samples, directions.shape[0])

    def weighted_sums(self, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
        return self._like.new_zeros(weights.shape[0], *self._like.shape)

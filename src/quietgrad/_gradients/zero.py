"""The gradient of what the losses do not depend on."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, Positions
from quietgrad._gradients.pooling import Pooling


class ZeroGrad(BlockGrads):
    """The gradient of a parameter that the losses do not depend on."""

    is_zero = True
    algorithm = "zero"

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

    @property
    def device(self) -> torch.device:
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self._like.dtype, torch.float32)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        return torch.zeros_like(self._like, dtype=torch.float64)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self._like.new_zeros(self._samples, *self._like.shape, dtype=self.dtype)

    def project(self, directions: Float[Tensor, "k *shape"]) -> Float64[Tensor, "n k"]:
        return self._like.new_zeros(self._samples, directions.shape[0], dtype=torch.float64)

    def weighted_sums(self, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
        return self._like.new_zeros(weights.shape[0], *self._like.shape)

    def times_right(self, right: Float[Tensor, "r i"]) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(self.shape[0], len(right)))

    def times_left(self, left: Float[Tensor, "o r"]) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(left.shape[1], self.shape[1:].numel()))

    def off_rows(self, right: Float[Tensor, "r i"]) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(self.shape[0], self.shape[1:].numel()))

    def restricted(self, kept: Positions) -> ZeroGrad:
        return ZeroGrad(self._samples, self._like.new_zeros(len(kept)))

    def pooled(self, pooling: Pooling) -> ZeroGrad:
        return ZeroGrad(pooling.users, self._like)

    @property
    def projects_unformed(self) -> bool:
        return True

    @property
    def kept_bytes(self) -> int:
        return 0

"""The gradient of what the losses do not depend on."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads


class ZeroGrad(BlockGrads):
    """The gradient of a parameter that the losses do not depend on."""

    is_zero = True
    algorithm = "zero"

    def __init__(self, samples: int, like: Tensor) -> None:
        self._samples = samples
        self.like = like.detach()

    @property
    def samples(self) -> int:
        return self._samples

    @property
    def shape(self) -> torch.Size:
        return self.like.shape

    def squared_norms(self) -> Float64[Tensor, " n"]:
        return torch.zeros(self._samples, dtype=torch.float64, device=self.like.device)

    @property
    def device(self) -> torch.device:
        return self.like.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self.like.dtype, torch.float32)

    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Float[Tensor, "*shape"]:
        return torch.zeros_like(self.like, dtype=torch.float64)

    def dense(self) -> Float[Tensor, "n *shape"]:
        return self.like.new_zeros(self._samples, *self.like.shape, dtype=self.dtype)

    def scale(
        self,
        *,
        left: Float[Tensor, "o ..."] | None = None,
        right: Float[Tensor, "i ..."] | None = None,
    ) -> ZeroGrad:
        return self

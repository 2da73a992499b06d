"""What every kind of per-sample gradient can be asked, formed or not."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Bool, Float, Float64, Shaped
from torch import Tensor

from quietgrad.gradients.blocks import as_rows


class BlockGrads(ABC):
    """Per-sample gradients of one named block; sample i's gradient has the block's `shape`.

    Subclasses hold factors, indices or the dense tensor; nobody outside asks which.
    """

    @property
    @abstractmethod
    def samples(self) -> int:
        """n, the number of samples (rows)."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Shape of one sample's gradient."""

    @abstractmethod
    def squared_norms(self) -> Float64[Tensor, " n"]:
        """‖g_i‖² in float64, never below the true squared norm of the rows `weighted_sum` sums."""

    @abstractmethod
    def weighted_sum(self, weights: Float[Tensor, " n"]) -> Tensor:
        """Σ_i weights_i · g_i. A row of weight exactly 0 contributes exactly 0, even if it holds NaN."""

    @abstractmethod
    def dense(self) -> Float[Tensor, "n *shape"]:
        """All gradients, formed."""

    def project(self, directions: Float[Tensor, "k *shape"]) -> Float[Tensor, "n k"]:
        """Inner products ⟨g_i, direction_j⟩; row i depends on sample i alone."""
        return as_rows(self.dense()) @ as_rows(directions).T

    def weighted_sums(self, weights: Float[Tensor, "k n"]) -> Float[Tensor, "k *shape"]:
        """k weighted sums at once: weights @ g."""
        flat = as_rows(self.dense())
        return (weights.to(flat.dtype) @ flat).reshape(weights.shape[0], *self.shape)


def zero_rows(rows: Shaped[Tensor, "n *rest"], dropped: Bool[Tensor, " n"]) -> Shaped[Tensor, "n *rest"]:
    """`rows` with the dropped ones exactly zero: multiplying a NaN by zero would keep the NaN."""
    if not bool(dropped.any()):
        return rows
    return rows.masked_fill(dropped.view(-1, *[1] * (rows.dim() - 1)), 0.0)

"""Gradient carriers: orthonormal L and R that span where a matrix's gradient is expected to live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad._kernels.transfer import upload
from quietgrad._representations.base import State

UNSEEN = 1e-6
"""How much randomness fills directions that a matrix of too small a rank leaves open, relative to its own."""


@dataclass(frozen=True)
class Carriers:
    """L `[o, r]` with orthonormal columns, R `[r, i]` with orthonormal rows."""

    left: Float[Tensor, "o r"]
    right: Float[Tensor, "r i"]


class CarrierRule(ABC):
    """How carriers come from what is public. A frozen dataclass, part of a mechanism's description."""

    def init(self, weights: Mapping[str, Float[Tensor, "o i"]]) -> State:
        """What must be remembered from before the first step."""
        return {}

    @abstractmethod
    def carriers(
        self,
        name: str,
        weight: Float[Tensor, "o i"],
        rank: int,
        step: int,
        state: State,
        rng: torch.Generator,
    ) -> Carriers:
        """This step's carriers of one matrix."""


@dataclass(frozen=True, kw_only=True)
class HistoricalUpdate(CarrierRule):
    """The principal directions of Δ = W_t − W_0; of W_t itself during the warm-up, when little was learned yet.

    Args:
        warmup_steps: steps that decompose the weight.
        iterations: K of the power method.
    """

    warmup_steps: int = 0
    iterations: int = 1

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ValueError(f"Expected warmup_steps >= 0, got {self.warmup_steps}.")
        if self.iterations < 1:
            raise ValueError(f"Expected iterations >= 1, got {self.iterations}. The paper uses 1.")

    def init(self, weights: Mapping[str, Float[Tensor, "o i"]]) -> State:
        return {name: weight.clone() for name, weight in weights.items()}

    def carriers(
        self,
        name: str,
        weight: Float[Tensor, "o i"],
        rank: int,
        step: int,
        state: State,
        rng: torch.Generator,
    ) -> Carriers:
        update = weight if step < self.warmup_steps else weight - state[name]
        return power_method(update, rank, self.iterations, rng)


@dataclass(frozen=True, kw_only=True)
class RandomCarriers(CarrierRule):
    """Random orthonormal directions, fresh at every step."""

    def carriers(
        self,
        name: str,
        weight: Float[Tensor, "o i"],
        rank: int,
        step: int,
        state: State,
        rng: torch.Generator,
    ) -> Carriers:
        o, i = weight.shape
        left, right = gaussian((o, rank), weight, rng), gaussian((i, rank), weight, rng)
        return Carriers(torch.linalg.qr(left).Q, torch.linalg.qr(right).Q.T)


def power_method(update: Float[Tensor, "o i"], rank: int, iterations: int, rng: torch.Generator) -> Carriers:
    """The paper's Algorithm 2: L ← orth(ΔRᵀ), R ← LᵀΔ, K times from a Gaussian R; then orthonormalise R."""
    right = gaussian((rank, update.shape[1]), update, rng)
    for _ in range(iterations):
        left = orthonormal_columns(update @ right.T, rng)
        right = left.T @ update
    return Carriers(left, orthonormal_columns(right.T, rng).T)


def orthonormal_columns(columns: Float[Tensor, "d r"], rng: torch.Generator) -> Float[Tensor, "d r"]:
    """Householder QR, orthonormal to rounding whatever comes in; missing directions are filled at random."""
    longest = columns.norm(dim=0).max()
    scale = torch.where(longest > 0, UNSEEN * longest, 1.0) / columns.shape[0] ** 0.5
    filled = columns + scale * gaussian(columns.shape, columns, rng)
    basis: Tensor = torch.linalg.qr(filled).Q
    return basis


def gaussian(shape: tuple[int, ...] | torch.Size, like: Tensor, rng: torch.Generator) -> Tensor:
    """Standard normals of a public generator (it lives on the CPU), in the dtype and on the device of `like`."""
    return upload(torch.randn(shape, generator=rng, dtype=torch.float32).to(like.dtype), like.device)

"""The first border: PerSampleGrads ──clip──▶ ClippedSum.

Formal guarantee: a clip scales row i to norm (1 − MARGIN)·C at most and declares sensitivity C. Neighbours are
zero-out: the same batch, row i of it zero. In the numbers that are really computed, ‖S − S'‖ ≤ C then holds for rows of
any length, precision and scale and for batches of any size (u = 2⁻²⁴ is float32's unit of rounding):

1. *Norms* are never below those of the rows that are summed. Squares are added in runs of 128, the runs in float64, and
   what rounding may have lost is added (`row_arithmetic`); Gram norms get their rounding bound, and rows for which it
   is coarse are formed (`gram`).
2. *Weights* are float64. The product of a row and its weight is rounded by at most 2u of it. Where float32 would round
   it coarsely (weights below 2⁻¹⁰⁰, factors longer than 2⁶⁰) it is made and added in float64.
3. *Sums* are taken over few rows in float32 and over those sums in float64 (there too). Row i is in one of the former;
   all others come out the same, bit for bit. That one is wrong by so little, with row i and without it, that the two
   are at most 2.5·10⁻⁴·C further apart for formed rows, and 4.5·10⁻³·C for products of factors, whatever the rows are
   and in whatever order they are added: no rounding is taken for random.
4. *Half-precision* gradients are converted to float32 before anything is computed from them, and torch is not allowed
   to multiply float32 numbers as bfloat16 or TF32 ones, which it does where `set_float32_matmul_precision` says so.

What is left of MARGIN is slack. A row whose norm is not finite contributes exactly zero; whether it does depends on
that row alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import ClippedSum, PerSampleGrads
from quietgrad.schedules import Schedule, value_at

MARGIN = 5e-3
"""Above `row_arithmetic.SPENT`. A smaller one would need shorter float32 sums (112 rows for 10⁻³), each one more pass
over a result that is as large as the parameter."""

FULL_PRECISION = {"none", "ieee", "highest"}
"""What torch calls products of float32 numbers that are not shortened first."""

SMALLEST, LARGEST = 2.0**-40, 2.0**100
"""Clip bounds that float32 arithmetic can guarantee: beyond, the weights and sums themselves leave its range."""


class Clip(ABC):
    """Bounds what one sample adds to the sum.

    Example:
        clip: qg.Clip = qg.FlatClip(1.0)
        weights = clip.weights(grads, step=0)
    """

    @abstractmethod
    def sensitivity(self, step: int) -> float:
        """Return the largest change of the sum when one sample is removed."""

    @abstractmethod
    def weights(self, grads: PerSampleGrads, step: int) -> dict[str, Float64[Tensor, " n"]]:
        """Return, for each block, the factor that clips each row; a row of factor 0 is dropped."""

    @abstractmethod
    def __call__(self, grads: PerSampleGrads, step: int) -> ClippedSum:
        """Clip each row and add them up: Σ_i weights_i · g_i."""

    def validate(self, space: Space) -> None:
        """Refuse a space that this clip cannot serve, before training."""


class RowClip(Clip):
    """Gives each row one factor, the same for all blocks, so that its norm is `bound` at most."""

    bound: float | Schedule

    def sensitivity(self, step: int) -> float:
        return _bound("bound", value_at(self.bound, step))

    def weights(self, grads: PerSampleGrads, step: int) -> dict[str, Float64[Tensor, " n"]]:
        return dict.fromkeys(grads.space, self._row_weights(grads, step))

    def __call__(self, grads: PerSampleGrads, step: int) -> ClippedSum:
        refuse_coarse_products()
        weights, space = self._row_weights(grads, step), grads.space
        blocks = grads.weighted_sum(weights)  # after which there may be no gradients any more
        return ClippedSum(blocks=blocks, sensitivity=self.sensitivity(step), space=space)

    @abstractmethod
    def _row_weights(self, grads: PerSampleGrads, step: int) -> Float64[Tensor, " n"]:
        """Return the factor of each row."""


@dataclass(frozen=True)
class FlatClip(RowClip):
    """clip_C(g) = g · min(1, C/‖g‖), the norm taken over all blocks.

    Example:
        clip = qg.FlatClip(1.0)
        total = clip(grads, step=0)
    """

    bound: float | Schedule

    def __post_init__(self) -> None:
        _check_bound("bound", self.bound)

    def _row_weights(self, grads: PerSampleGrads, step: int) -> Float64[Tensor, " n"]:
        return clip_weights(grads.squared_norms(), self.sensitivity(step))


@dataclass(frozen=True)
class AutomaticClip(RowClip):
    """Normalise every sample: g · C/(‖g‖ + γ).

    C then only rescales the learning rate (Bu et al. 2023).

    Example:
        clip = qg.AutomaticClip(1.0, gamma=0.01)
        mechanism = qg.methods.dp_sgd(clip=clip)
    """

    bound: float | Schedule = 1.0
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _check_bound("bound", self.bound)
        _positive("gamma", self.gamma)

    def _row_weights(self, grads: PerSampleGrads, step: int) -> Float64[Tensor, " n"]:
        norms = grads.squared_norms().sqrt()
        bound = (1 - MARGIN) * self.sensitivity(step)
        return torch.where(norms.isfinite(), bound / (norms + self.gamma), 0.0)


@dataclass(frozen=True)
class PerGroupClip(Clip):
    """Each group of blocks b clipped to its own C_b; sensitivity √Σ C_b².

    Args:
        bounds: prefix of block names → C_b. A block belongs to the longest prefix it starts with.

    Raises:
        ValueError: there is no group, or a bound is not above 0.

    Example:
        clip = qg.PerGroupClip({"conv": 0.5, "": 1.0})  # what begins with conv, and all the rest
        mechanism = qg.methods.dp_sgd(clip=clip)
    """

    bounds: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("Expected at least one group in `bounds`, got none. Use FlatClip for one bound.")
        for prefix, bound in self.bounds.items():
            _bound(f"bounds[{prefix!r}]", bound)

    def sensitivity(self, step: int) -> float:
        return math.sqrt(sum(bound**2 for bound in self.bounds.values()))

    def validate(self, space: Space) -> None:
        for name in space:
            self._group(name)

    def weights(self, grads: PerSampleGrads, step: int) -> dict[str, Float64[Tensor, " n"]]:
        return self._weights(grads.blocks)

    def __call__(self, grads: PerSampleGrads, step: int) -> ClippedSum:
        refuse_coarse_products()
        blocks = grads.blocks
        weights = self._weights(blocks)
        sums = {name: block.weighted_sum(weights[name]) for name, block in blocks.items()}
        return ClippedSum(blocks=sums, sensitivity=self.sensitivity(step), space=grads.space)

    def _weights(self, blocks: Mapping[str, BlockGrads]) -> dict[str, Float64[Tensor, " n"]]:
        squared: dict[str, Float64[Tensor, " n"]] = {}
        for name, block in blocks.items():
            group = self._group(name)
            squared[group] = squared.get(group, 0.0) + block.squared_norms()
        # A sample with a non-finite gradient anywhere is dropped everywhere, as under a flat clip.
        finite = torch.stack(list(squared.values())).isfinite().all(0)
        weights = {
            group: torch.where(finite, clip_weights(norms, self.bounds[group]), 0.0)
            for group, norms in squared.items()
        }
        return {name: weights[self._group(name)] for name in blocks}

    def _group(self, name: str) -> str:
        matching = [prefix for prefix in self.bounds if name.startswith(prefix)]
        if not matching:
            raise ValueError(
                f"No group of `bounds` holds the parameter {name!r}. Add a prefix for it, or '' for all the rest."
            )
        return max(matching, key=len)


def refuse_coarse_products() -> None:
    """Refuse norms and sums that torch would compute from fewer bits than float32 has.

    Raises:
        PrivacyError: torch is set to do so.
    """
    if not _product_precisions() <= FULL_PRECISION:
        raise PrivacyError(
            "torch is set to multiply float32 matrices in fewer bits, and norms and sums would be off by more than a "
            "clip's margin. Call torch.set_float32_matmul_precision('highest') before the first private step."
        )


def _product_precisions() -> set[str]:
    if not hasattr(torch.backends.mkldnn, "matmul"):  # before torch 2.9 there is one setting for all devices
        return {torch.get_float32_matmul_precision()}
    cuda = {torch.backends.cuda.matmul.fp32_precision} if torch.cuda.is_initialized() else set()
    return {torch.backends.mkldnn.matmul.fp32_precision} | cuda


def clip_weights(squared_norms: Float64[Tensor, " n"], bound: float) -> Float64[Tensor, " n"]:
    """Return min(1, (1−MARGIN)·C/‖g_i‖), and 0 for a non-finite norm."""
    norms = squared_norms.sqrt()
    weights = ((1 - MARGIN) * bound / norms.clamp_min(1e-300)).clamp_max(1.0)
    return torch.where(norms.isfinite(), weights, 0.0)


def _positive(name: str, value: float) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(
            f"Expected {name} > 0 and finite, got {value}. It is the largest norm one sample may have."
        )
    return float(value)


def _bound(name: str, value: float) -> float:
    if SMALLEST <= _positive(name, value) <= LARGEST:
        return float(value)
    raise ValueError(
        f"Expected {name} between 1e-12 and 1e30, where float32 can guarantee it, got {value}. Scale the losses."
    )


def _check_bound(name: str, bound: float | Schedule) -> None:
    if not isinstance(bound, Schedule):
        _bound(name, bound)

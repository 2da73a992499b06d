"""What one pass of the user's code says of each record: its loss, and two numbers that stand for its gradient.

A loss alone does not show everything. A constant added to it hides small changes, and a gradient hook changes gradients
without changing losses. So each record also has the norm of its gradient and the inner product with a random direction.
Gradients are all that is ever released. Losses are compared too, because a gradient may happen to be zero.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from quietgrad._gradients.stages import BlockwiseGrads
from quietgrad._independence.sketches import Directions, Sketch

SMALL = 1e-3
"""Gradients below this part of the batch's mean norm are compared on that scale: their own digits are rounding."""

ROUNDINGS = 256
"""Rounding steps by which a loss may differ between kernels of different shapes, of a loss of one."""

TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Relative change that kernels of another shape may cause; half precision has fewer digits."""
HALF_TOLERANCE = 0.1


@dataclass(frozen=True)
class Fingerprints:
    """Describe the records of one pass.

    Args:
        losses, norms, projections: one number per record.
        dtype: the lowest precision that took part; decides what counts as rounding.
    """

    losses: Float64[Tensor, " n"]
    norms: Float64[Tensor, " n"]
    projections: Float64[Tensor, " n"]
    dtype: torch.dtype = torch.float32

    def __len__(self) -> int:
        return len(self.losses)

    @property
    def are_finite(self) -> Bool[Tensor, " n"]:
        """Whose loss and gradient are finite."""
        return self.losses.isfinite() & self.norms.isfinite()

    def moved(
        self,
        other: Fingerprints,
        stayed: Int64[Tensor, " k"],
        places: Int64[Tensor, " k"],
        *,
        factor: float = 1.0,
    ) -> Bool[Tensor, " k"]:
        """Return which of the records that stayed differ by more than rounding explains.

        The scales are those of all records of this pass, never of one record alone: a record whose gradient is nearly
        zero consists of rounding errors, and whether a run is refused must not depend on such a record. Losses only add
        to what gradients show, so they are compared coarsely: one near zero is what is left of large numbers.

        Args:
            other: those of another pass.
            stayed: the places here of records that are in both.
            places: their places there.
            factor: how many times what rounding explains is allowed.
        """
        tolerance = factor * TOLERANCES.get(self.dtype, HALF_TOLERANCE)
        norms, losses = _finite(self.norms), _finite(self.losses).abs()
        scale = (tolerance * (norms + SMALL * norms.mean()))[stayed]
        roundings = ROUNDINGS * torch.finfo(self.dtype).eps
        allowed = (tolerance * (losses + losses.mean()) + roundings)[stayed]
        return (
            _differ(self.norms[stayed], other.norms[places], scale)
            | _differ(self.projections[stayed], other.projections[places], 3.0 * scale)
            | _differ(self.losses[stayed], other.losses[places], allowed)
        )


def _finite(values: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    return values.nan_to_num(0.0, 0.0, 0.0)


def _differ(old: Tensor, new: Tensor, allowed: Tensor) -> Bool[Tensor, " n"]:
    both_broken = ~old.isfinite() & ~new.isfinite()
    # A difference with a number that is not finite is not finite itself, and so never within what is allowed.
    return ~((new - old).abs() <= allowed) & ~both_broken & (old != new)


class TakeFingerprints:
    """Take fingerprints of a pass, whose gradients are seen while the backward makes them, and not kept for it.

    The random directions follow from a secret seed, so they are the same in every pass.
    """

    def __init__(self) -> None:
        self._directions = Directions(secrets.randbits(62))

    def begin(self) -> Sketch:
        """Return what takes the blocks of a pass as they come."""
        return Sketch(self._directions)

    def finish(
        self, losses: Tensor, grads: BlockwiseGrads, sketch: Sketch, precision: torch.dtype
    ) -> Fingerprints:
        """Return the fingerprints of a pass, all blocks of which the sketch has seen."""
        losses = losses.mean(1) if losses.dim() == 2 else losses
        dtype = min(precision, losses.dtype, key=lambda kind: kind.itemsize)
        norms = grads.squared_norms().double().cpu().sqrt()
        return Fingerprints(losses.detach().double().cpu(), norms, sketch.products(len(losses)), dtype)

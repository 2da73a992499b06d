"""The dominating pair of one step as losses on a grid: the Gaussian's, and Poisson subsampling of any pair.

No event is known here. Each builds its loss from these functions (`base.Event`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Float64, Int64
from numpy import ndarray
from scipy import special

from quietgrad.accounting.privacy_loss import LossPmf, rising_share, split_to_grid

REACH = 10.0
"""The Gaussian is cut where less than 1e-23 of its mass is left; the cut part counts as loss +∞."""


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """One step's loss in both directions.

    Args:
        remove: of log P/Q under P, where P has the record and Q does not.
        add: of log Q/P under Q.

    Example:
        losses = gaussian.step_loss(0.01, 1e-3)
        infinite = losses.remove.infinity + losses.add.infinity
    """

    remove: LossPmf
    add: LossPmf


def no_loss(step: float, *, pessimistic: bool = True) -> StepLoss:
    """Return the loss of a release that says nothing."""
    nothing = LossPmf(step=step, lower=0, mass=np.ones(1), infinity=0.0, pessimistic=pessimistic)
    return StepLoss(remove=nothing, add=nothing)


def gaussian_loss(noise_multiplier: float, rate: float, step: float, *, pessimistic: bool = True) -> StepLoss:
    """Return the loss of the subsampled Gaussian, by exact masses of the cells.

    The pair is N(0,1) against (1-q) N(0,1) + q N(1/σ,1).
    remove: l(z) = log(1 - q + q exp(z/σ - 1/(2 σ²))); add: -l(z).
    """
    shift = 1 / noise_multiplier
    bottom, top = _subsample(np.array([-REACH, REACH]) * shift + np.array([-1, 1]) * shift**2 / 2, rate)
    edges = np.arange(math.floor(bottom / step), math.ceil(top / step) + 1)
    z = _undo_subsampling(edges * step, rate, shift)
    without = _normal_mass(z[:-1], z[1:])
    with_record = _normal_mass(z[:-1] - shift, z[1:] - shift)
    mixture = (1 - rate) * without + rate * with_record
    # What the edges leave out: below, it is rounded up into the first cell; above, it counts as infinite.
    below = float(special.ndtr(z[0])), float(special.ndtr(z[0] - shift))
    above = float(special.ndtr(-z[-1])), float(special.ndtr(shift - z[-1]))
    remove = _from_cells(
        edges, mixture, without, step, low=_mix(below, rate), high=_mix(above, rate), pessimistic=pessimistic
    )
    add = _from_cells(
        -edges[::-1], without[::-1], mixture[::-1], step, low=above[0], high=below[0], pessimistic=pessimistic
    )
    return StepLoss(remove=remove, add=add)


def subsample(pmf: LossPmf, rate: float, step: float) -> StepLoss:
    """Subsample any symmetric pair: ((1-q) Q + q P, Q) and its mirror, on a new grid.

    Only losses ≥ 0 are read from the pair; the others follow from its symmetry, Q-mass(-l) = P-mass(l),
    because dividing a tiny P-mass by exp(l) would blow up its rounding noise.
    """
    start = max(0, -pmf.lower)
    half, loss = pmf.mass[start:], pmf.losses[start:]
    p = np.concatenate([(half * np.exp(-loss))[:0:-1], half])
    q, loss = p[::-1], np.concatenate([-loss[:0:-1], loss])
    only = max(pmf.infinity, 1.0 - float(p.sum()))  # P-mass that Q never shows, and by symmetry the reverse
    if rate == 1:
        full = split_to_grid(loss, p, step=step, infinity=only)
        return StepLoss(remove=full, add=full)
    loss = _subsample(loss, rate)
    mixture = (1 - rate) * q + rate * p
    # Where only Q has mass the loss is log(1 - q), below all others: rounded up to the lowest of them, and in the
    # mirror to infinity, because an atom that far away would stretch the grid.
    mixture[0] += (1 - rate) * only
    remove = split_to_grid(loss, mixture, step=step, infinity=rate * only)
    return StepLoss(remove=remove, add=split_to_grid(-loss, q, step=step, infinity=only))


@lru_cache(maxsize=4096)
def deviation(spread: float, rate: float) -> float:
    """Estimate the standard deviation of a step's loss from that before subsampling, as if it were Gaussian."""
    z = np.linspace(-8, 8, 801)
    weight = np.exp(-(z**2) / 2)
    losses = _subsample(np.concatenate([spread * z - spread**2 / 2, spread * z + spread**2 / 2]), rate)
    weights = np.concatenate([(1 - rate) * weight, rate * weight])
    weights /= weights.sum()
    mean = np.sum(weights * losses)
    return float(np.sqrt(np.sum(weights * (losses - mean) ** 2)))


def reach(spread: float, rate: float) -> float:
    """Estimate the width of a step's losses; over the grid's width it is the number of points they take."""
    bottom, top = _subsample(np.array([-REACH, REACH]) * spread + np.array([-1, 1]) * spread**2 / 2, rate)
    return float(top - bottom)


def _from_cells(
    edges: Int64[ndarray, " edges"],
    upper: Float64[ndarray, " m"],
    lower: Float64[ndarray, " m"],
    step: float,
    *,
    low: float,
    high: float,
    pessimistic: bool,
) -> LossPmf:
    """Masses of the cells between grid points, split to a cell's ends so that P- and Q-mass are both kept.

    What lies beyond the edges (`low`, `high`) is rounded up: to the first edge and to infinity. Optimistic
    estimates round everything down instead.
    """
    start = edges[:-1] * step
    seen = (upper > 0) & (lower > 0)
    loss = np.where(seen, np.log(np.where(seen, upper, 1.0) / np.where(seen, lower, 1.0)), start + step)
    mass = np.append(upper, 0.0)
    if not pessimistic:
        mass[-1] = high
        return LossPmf(step=step, lower=int(edges[0]), mass=mass, infinity=0.0, pessimistic=False)
    up = upper * rising_share(loss - start, step)
    mass[:-1] -= up
    mass[1:] += up
    mass[0] += low
    return LossPmf(step=step, lower=int(edges[0]), mass=mass, infinity=high)


def _subsample(loss: Float64[ndarray, " m"], rate: float) -> Float64[ndarray, " m"]:
    """log(1 - q + q exp(l)), without overflow."""
    if rate == 1:
        return loss
    return np.logaddexp(math.log1p(-rate), math.log(rate) + loss)


def _undo_subsampling(loss: Float64[ndarray, " m"], rate: float, shift: float) -> Float64[ndarray, " m"]:
    """The z with log(1 - q + q exp(shift z - shift² / 2)) = loss; -inf for losses below log(1 - q)."""
    base = loss if rate == 1 else _unmix(loss, rate)
    z: Float64[ndarray, " m"] = (base + shift**2 / 2) / shift
    return z


def _unmix(loss: Float64[ndarray, " m"], rate: float) -> Float64[ndarray, " m"]:
    """log((exp(l) − (1 − q)) / q), −∞ where there is no such number.

    Two ways of writing it: for a small q everything happens near l = 0, where exp(l) − 1 keeps the digits; for a q near
    1, losses go down to log(1 − q), where exp(l) − 1 rounds to −1 and only exp(−l) keeps them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        near_zero = np.log1p(np.expm1(np.minimum(loss, 1.0)) / rate)
        farther = loss - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-loss))
    base = np.where((loss < 1.0) & (rate < 0.5), near_zero, farther)
    return np.where(np.isnan(base), -np.inf, base)


def _normal_mass(a: Float64[ndarray, " m"], b: Float64[ndarray, " m"]) -> Float64[ndarray, " m"]:
    """Φ(b) - Φ(a), from the nearer tail so that small masses keep their digits."""
    right, left = special.ndtr(-a) - special.ndtr(-b), special.ndtr(b) - special.ndtr(a)
    mass: Float64[ndarray, " m"] = np.where(a > 0, right, left)
    return mass


def _mix(masses: tuple[float, float], rate: float) -> float:
    return (1 - rate) * masses[0] + rate * masses[1]

"""Privacy losses on a grid: masses, the split that keeps them pessimistic, composition, and the hockey stick.

A dominating pair (P, Q) is stored as the P-mass of each loss l = log P/Q on a grid of width `step`; the
Q-mass of an atom is its P-mass times exp(-l). Replacing an atom by its two grid neighbours so that both
masses are kept undoes a merging of outcomes, i.e. a post-processing: the new pair dominates, so ε can
only grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy
from jaxtyping import Float64
from numpy import ndarray

LARGEST_EXPONENT = 700.0
"""e to this power is still a float."""

TAIL = 1e-15
"""What is cut off each tail of a composition, in mass of the (tilted) sum; added back to the mass at infinity."""


@dataclass(frozen=True, kw_only=True)
class LossPmf:
    """P-masses `mass[i]` at loss (lower + i) * step, and `infinity` at loss +inf.

    Args:
        step: width of the grid.
        lower: index of the first mass.
        mass: of each loss, under P.
        infinity: mass of what P shows and Q never does.
        pessimistic: whether rounding only ever raised the losses (else it only ever lowered them).
        tilt: λ of an exponential tilt; the real mass is mass * exp(log_scale - tilt * loss).
        log_scale: see tilt; both are 0 unless `compose` tilts.

    Example:
        loss = qg.accounting.GaussianEvent(noise_multiplier=2.0).loss(0.01)
        mean = float(loss.mass @ loss.losses)
    """

    step: float
    lower: int
    mass: Float64[ndarray, " losses"]
    infinity: float
    pessimistic: bool = True
    tilt: float = 0.0
    log_scale: float = 0.0

    @cached_property
    def losses(self) -> Float64[ndarray, " losses"]:
        return (np.arange(len(self.mass)) + self.lower) * self.step

    @cached_property
    def _support(self) -> tuple[Float64[ndarray, " seen"], Float64[ndarray, " seen"]]:
        """Losses and masses where there is any: elsewhere exp(order * loss) may overflow for nothing."""
        seen = self.mass > 0
        return self.losses[seen], self.mass[seen]

    def log_mgf(self, order: float) -> float:
        """Return log E_P[exp(order * L)] over the finite losses."""
        losses, mass = self._support
        exponents = order * losses
        largest = float(max(exponents[0], exponents[-1]))
        # Not `mass @ ...`: BLAS would wake threads for a sum of a millisecond, which a busy machine makes slow.
        return largest + math.log(float(np.sum(mass * np.exp(exponents - largest))))

    def tilt_by(self, order: float) -> Float64[ndarray, " losses"]:
        """Return mass · exp(order · L) / E_P[exp(order · L)].

        In log space, because exp(order · L) may overflow where there is no mass.
        """
        weights = _log(self.mass) + order * self.losses - self.log_mgf(order)
        return np.exp(weights)

    def real_mass(self, kept: slice) -> Float64[ndarray, " kept"]:
        """Return the masses without the tilt.

        In the tail the transform leaves rounding noise, which the untilting may blow up to any number. No mass is above
        1, so none is claimed to be.
        """
        log_mass = _log(self.mass[kept]) + self.log_scale - self.tilt * self.losses[kept]
        return np.exp(np.minimum(log_mass, 0.0))


def split_to_grid(
    losses: Float64[ndarray, " atoms"], mass: Float64[ndarray, " atoms"], *, step: float, infinity: float
) -> LossPmf:
    """Move atoms to grid points so that the new pair dominates the old one.

    A part b of the mass p of an atom goes up to the next grid point and p - b down, so that its P-mass and
    its Q-mass are both kept: b = p (1 - exp(floor - l)) / (1 - exp(-step)).

    Args:
        losses: log P/Q of each atom.
        mass: of each atom, under P.
        step: width of the grid.
        infinity: mass of what P shows and Q never does.

    Returns:
        the loss on the grid. Checked by: tests/accounting/test_own_event.py
    """
    floor = np.floor(losses / step).astype(np.int64)
    first = int(floor.min())
    grid = np.zeros(int(floor.max()) - first + 2)
    up = mass * rising_share(losses - floor * step, step)
    np.add.at(grid, floor - first, mass - up)
    np.add.at(grid, floor + 1 - first, up)
    return LossPmf(step=step, lower=first, mass=grid, infinity=infinity)


def rising_share(above: Float64[ndarray, " atoms"], step: float) -> Float64[ndarray, " atoms"]:
    """Return the share of an atom `above` its lower grid point that goes to the upper one."""
    share: Float64[ndarray, " atoms"] = np.clip(np.expm1(-above) / math.expm1(-step), 0.0, 1.0)
    return share


def compose(parts: Sequence[tuple[LossPmf, int]], *, tilt: float = 0.0, tail: float = TAIL) -> LossPmf:
    """Return the loss of all parts together, part j taken count_j times.

    Losses of independent releases add up, so their masses are convolved: one product of Fourier transforms. With a
    tilt λ the masses are weighted by exp(λ * loss) before the transform. That moves the rounding noise of the FFT
    (about 1e-16 of the largest mass) out of the tail that decides a small δ.

    Guarantee: mass that falls outside the window is added back at loss +inf, so ε can only grow.
    Checked by: tests/accounting/test_laws_of_the_accountant.py
    """
    step = parts[0][0].step
    pessimistic = parts[0][0].pessimistic
    assert all((p.step, p.tilt, p.pessimistic) == (step, 0, pessimistic) for p, _ in parts), (
        "one grid for all"
    )
    log_scale = sum(count * pmf.log_mgf(tilt) for pmf, count in parts)
    lower, upper = _window(parts, tilt, log_scale, tail)
    length = scipy.fft.next_fast_len(
        max(upper - lower + 1, max(len(pmf.mass) for pmf, _ in parts)), real=True
    )
    spectrum = np.ones(length // 2 + 1, dtype=complex)
    start = 0
    for pmf, count in parts:
        spectrum *= scipy.fft.rfft(pmf.tilt_by(tilt), length) ** count
        start += pmf.lower * count
    mass = np.maximum(np.roll(scipy.fft.irfft(spectrum, length), start - lower), 0.0)
    infinity = -math.expm1(sum(count * math.log1p(-pmf.infinity) for pmf, count in parts))
    # The transform is cyclic: what lies beyond the window came back on the other side, at the right total
    # mass.
    cut = tail * math.exp(min(log_scale - tilt * upper * step, 0.0)) if pessimistic else 0.0
    return LossPmf(
        step=step,
        lower=lower,
        mass=mass if tilt else mass * math.exp(log_scale),
        infinity=min(infinity + cut, 1.0),
        pessimistic=pessimistic,
        tilt=tilt,
        log_scale=log_scale if tilt else 0.0,
    )


def best_tilt(parts: Sequence[tuple[LossPmf, int]], log_delta: float) -> float:
    """Return the Chernoff order of the tail of mass δ: argmin_a (log E[exp(a L)] - log δ) / a."""
    orders = _orders(parts)
    bounds = [(sum(n * pmf.log_mgf(order) for pmf, n in parts) - log_delta) / order for order in orders]
    return float(orders[int(np.argmin(bounds))])


def epsilon_at(pmf: LossPmf, delta: float) -> float:
    """Return the smallest ε ≥ 0 whose hockey-stick divergence is at most δ."""
    if pmf.infinity > delta:
        return math.inf
    losses, above, weighted = _tails(pmf)
    excess = above - weighted + pmf.infinity  # δ(ε) at every grid point
    inside = np.flatnonzero(excess <= delta)
    if len(inside) == 0:
        return max(0.0, float(losses[-1]))
    j = int(inside[0])
    rest = above[j] + pmf.infinity - delta
    if j == 0 or rest <= 0 or weighted[j] == 0:
        # Below the window nothing is known: only its first point can be claimed.
        return max(0.0, float(losses[j]))
    return max(0.0, float(losses[j] + math.log(rest / weighted[j])))


def delta_at(pmf: LossPmf, epsilon: float) -> float:
    """Return the hockey-stick divergence E_P[(1 - exp(ε - L))_+]."""
    losses = pmf.losses
    over = slice(int(np.searchsorted(losses, epsilon, side="right")), None)
    gain = -np.expm1(epsilon - losses[over])
    return float(min(pmf.infinity + np.sum(pmf.real_mass(over) * gain), 1.0))


def found_at(pmf: LossPmf, false_positives: float) -> tuple[float, float]:
    """Return the least e^ε α + δ(ε) and the least 1 − e^(−ε) (1 − α − δ(ε)) over the grid, for α false positives."""
    losses, above, weighted = _tails(pmf)
    excess = above - weighted + pmf.infinity
    reached = losses < LARGEST_EXPONENT  # beyond, e^ε is no float, and the bound far above 1
    tilted = np.exp(losses[reached])
    direct = tilted * false_positives + excess[reached]
    complement = 1 - (1 - false_positives - excess[reached]) / tilted
    return float(direct.min(initial=1.0)), float(complement.min(initial=1.0))


def _tails(
    pmf: LossPmf,
) -> tuple[Float64[ndarray, " m"], Float64[ndarray, " m"], Float64[ndarray, " m"]]:
    """Losses s_j ≥ 0 (and one below), mass U_j = Σ_{i≥j} m_i and V_j = Σ_{i≥j} m_i exp(s_j - s_i)."""
    keep = max(0, min(-pmf.lower - 1, len(pmf.mass) - 1))
    losses, mass = pmf.losses[keep:], pmf.real_mass(slice(keep, None))
    above = np.cumsum(mass[::-1])[::-1]
    # V_j = m_j + exp(-step) V_{j+1}: a filter, because exp(s_j) alone overflows for large losses.
    weighted = scipy.signal.lfilter([1.0], [1.0, -math.exp(-pmf.step)], mass[::-1])[::-1]
    return losses, above, weighted


def _orders(parts: Sequence[tuple[LossPmf, int]]) -> Float64[ndarray, " orders"]:
    """Chernoff orders worth trying: up to the best one of a Gaussian sum, down to those of a skewed one."""
    deviation = math.sqrt(sum(count * _variance(pmf) for pmf, count in parts)) or parts[0][0].step
    gaussian = math.sqrt(-2 * math.log(TAIL)) / deviation
    return np.geomspace(min(0.1 * gaussian, 1.0), 4 * gaussian, 16)


def _variance(pmf: LossPmf) -> float:
    total = float(pmf.mass.sum())
    mean = float(np.sum(pmf.mass * pmf.losses)) / total
    return float(np.sum(pmf.mass * (pmf.losses - mean) ** 2)) / total


def _window(
    parts: Sequence[tuple[LossPmf, int]], tilt: float, log_scale: float, tail: float
) -> tuple[int, int]:
    """Grid indices beyond which the tilted sum has at most `tail` mass, half on each side, by Chernoff."""
    step = parts[0][0].step
    lower = sum(pmf.lower * count for pmf, count in parts)
    upper = sum((pmf.lower + len(pmf.mass) - 1) * count for pmf, count in parts)
    room = -math.log(tail / 2)
    for order in _orders(parts):
        for sign in (1.0, -1.0):
            growth = sum(n * pmf.log_mgf(tilt + sign * order) for pmf, n in parts) - log_scale
            bound = sign * (growth + room) / (order * step)
            if sign > 0:
                upper = min(upper, math.ceil(bound))
            else:
                lower = max(lower, math.floor(bound))
    return lower, max(upper, lower)


def _log(mass: Float64[ndarray, " m"]) -> Float64[ndarray, " m"]:
    """log m, −∞ for no mass."""
    with np.errstate(divide="ignore"):
        logs: Float64[ndarray, " m"] = np.log(mass)
    return logs

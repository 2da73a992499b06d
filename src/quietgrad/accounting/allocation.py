"""The price of records that take part once in t steps, at a step of their own that is drawn at random.

Let step j of the block release f_j + [x is allocated to j]·v_j + N(0, σ²I), f_j and v_j depending on the releases
before, ‖v_j‖ ≤ 1. Subtract f_j, turn v_j to the first axis and drop the other axes, which are noise in both worlds. If
‖v_j‖ = s < 1, then s·u + √(1 − s²)·noise makes it from u = [allocated to j] + σz. So the block is post-processing of

    P = (1/t)·Σ_i N(e_i/σ, I),  Q = N(0, I)  in t dimensions;  P/Q = R = (1/t)·Σ_j X_j,  X_j = exp(z_j/σ − 1/(2σ²))

X_j are independent with mean 1 under Q. δ(ε) = E_Q[(R − e^ε)₊] is the mean of a convex function of R. It grows if each
X_j is replaced by its two neighbours on a grid of numbers, with its mean kept: so does every sum of them. Sums on a
grid are convolutions. Domination for every ε, negative ones too, gives the mirrored direction as well. Numbers beyond
the ends of the grid count as loss +∞. Feldman and Shenfeld ("Privacy amplification by random allocation", 2025) study
this scheme. The number of records of each step is random: a shuffled loader, whose batches have a fixed size, is not
covered, because there the others' places tell that of x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy
from jaxtyping import Float64
from numpy import ndarray
from scipy import special

from quietgrad.accounting.base import register_event
from quietgrad.accounting.events import GaussianNoise, whole_number
from quietgrad.accounting.pairs import StepLoss, gaussian_loss, no_loss
from quietgrad.accounting.privacy_loss import split_to_grid
from quietgrad.accounting.renyi_moments import Orders

LOW, HIGH = 8.0, 7.5
"""z is cut here below (6·10⁻¹⁶ of its mass) and, seen from the world with the record, above (3·10⁻¹⁴)."""

ROUNDING = 1e-12
"""Mass at loss +∞ for what rounding of the transform may hide; about 10⁻¹³ in all."""

LEAST = 0.45
"""Below this σ little is gained by not knowing the place of a record. It counts as known."""

POINTS = 1 << 17
"""Of each grid, for one X."""

LARGEST_MOMENT = 64
"""Rényi orders above this one are bounded by those of a record whose place is known."""


@register_event("allocation")
@dataclass(frozen=True, kw_only=True)
class AllocationEvent(GaussianNoise):
    """What `steps` steps release together in which each record takes part once, at a random one of them.

    Guarantee: an upper bound, by the argument above. Checked by: tests/accounting/test_allocation.py

    Args:
        noise_multiplier: σ of each step.
        steps: t.

    Raises:
        ValueError: the multiplier is negative or infinite, or there are no steps.

    Example:
        event = qg.accounting.AllocationEvent(noise_multiplier=1.0, steps=100)
        epsilon = qg.accounting.epsilon([qg.accounting.Phase(event=event, rate=1.0, count=5)], 1e-5)  # 5 epochs
    """

    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", whole_number("steps", self.steps, 1))

    @property
    def spread(self) -> float:
        known = 1 / self.noise_multiplier
        return min(known, math.sqrt(math.expm1(min(known**2, 100.0)) / self.steps))

    @property
    def is_exclusive(self) -> bool:
        return True

    def step_loss(self, rate: float, step: float, *, pessimistic: bool = True) -> StepLoss:
        _check_whole(rate)
        if not pessimistic:
            return no_loss(step, pessimistic=False)  # the masses are bounds from above only
        if self.steps == 1 or self.noise_multiplier < LEAST:
            return gaussian_loss(self.noise_multiplier, 1.0, step)
        ratios = allocation_ratios(self.noise_multiplier, self.steps)
        logs = np.log(ratios.values)
        return StepLoss(
            remove=split_to_grid(logs, ratios.with_record, step=step, infinity=ratios.beyond_with),
            add=split_to_grid(-logs, ratios.without, step=step, infinity=ratios.beyond_without),
        )

    def rdp(self, rate: float, orders: Orders) -> Orders:
        _check_whole(rate)
        square = self.noise_multiplier**-2
        known = orders * square / 2
        # The mean of X is at least its geometric mean, of which all moments are known.
        mirrored = np.minimum((orders - 1) * square / (2 * self.steps) + square / 2, known)
        logs = log_moments_of_mean(square, self.steps, LARGEST_MOMENT)
        small = orders <= LARGEST_MOMENT
        places = np.where(small, orders, 2).astype(int)
        remove = np.where(small, logs[places] / (orders - 1), known)
        rdp: Orders = np.maximum(np.minimum(remove, known), mirrored)
        return rdp


@dataclass(frozen=True, eq=False)
class Ratios:
    """R on a grid.

    Args:
        values: its values.
        with_record: their masses under P.
        without: their masses under Q.
        beyond_with: mass of P that counts as loss +∞.
        beyond_without: mass of Q that counts as loss +∞ in the mirrored direction.
    """

    values: Float64[ndarray, " m"]
    with_record: Float64[ndarray, " m"]
    without: Float64[ndarray, " m"]
    beyond_with: float
    beyond_without: float


@lru_cache(maxsize=64)
def allocation_ratios(noise_multiplier: float, steps: int) -> Ratios:
    """Return R = (1/t)·Σ X_j on a grid, under both worlds.

    Small σ makes X reach far, so there are two grids: a fine one for sums of which no part exceeds `middle`, and a
    coarse one for all others, which are large next to its width.
    """
    shift = 1 / noise_multiplier
    lowest, highest = (math.exp(shift * z - shift**2 / 2) for z in (-LOW, HIGH + shift))
    # A split adds at most width²/4 to the variance of X: here a thousandth of it. Where few X are summed, small sums
    # count too, and the grid must be fine next to them.
    width = min(math.sqrt(4e-3 * math.expm1(shift**2)), 0.02 * steps * math.exp(-2 * shift))
    middle = min(highest, lowest + POINTS * width)
    fine = RatioPart.of_cells(lowest, middle, width, shift)
    sums = [fine.summed(RatioPart.nothing(fine), steps)]
    if middle < highest:
        coarse = (middle - lowest) / max(1, math.ceil((middle - lowest) / (highest / POINTS)))
        far = RatioPart.of_cells(middle, highest, coarse, shift)
        sums.append(far.extended_to(lowest).summed(fine.moved_to(lowest, coarse), steps))
    outside = float(special.ndtr(-LOW) + special.ndtr(-HIGH - shift))
    values, with_record, without = (np.concatenate([one[place] for one in sums]) for place in range(3))
    return Ratios(
        values,
        with_record,
        without,
        beyond_with=steps * outside + float(special.ndtr(-HIGH)) + ROUNDING,
        beyond_without=steps * outside + ROUNDING,
    )


Masses = Float64[ndarray, " _"]


@dataclass(frozen=True, eq=False)
class RatioPart:
    """A part of the distribution of X, at points `first` + k·`width`.

    Args:
        without: masses in the world without the record.
        with_record: those in the other one, which are X times as large.
    """

    first: float
    width: float
    without: Masses
    with_record: Masses

    @classmethod
    def of_cells(cls, first: float, last: float, width: float, shift: float) -> RatioPart:
        """Give the mass of X in each cell to its two ends so that its mean is kept."""
        cells = first + width * np.arange(max(1, math.ceil((last - first) / width - 1e-9)) + 1)
        z = (np.log(cells) + shift**2 / 2) / shift
        mass, mean = (_normal_masses(z - power * shift) for power in (0, 1))
        return cls._split(cells[:-1], mass, mean, first, width, len(cells))

    @classmethod
    def nothing(cls, like: RatioPart) -> RatioPart:
        """Return no mass at all."""
        return cls(like.first, like.width, np.zeros(1), np.zeros(1))

    @classmethod
    def _split(
        cls, floors: Masses, mass: Masses, mean: Masses, first: float, width: float, count: int
    ) -> RatioPart:
        up = np.clip((mean - mass * floors) / width, 0.0, mass)
        places = np.rint((floors - first) / width).astype(np.int64)
        without = np.zeros(count)
        np.add.at(without, places, mass - up)
        np.add.at(without, places + 1, up)
        return cls(first, width, without, without * (first + width * np.arange(count)))

    @property
    def points(self) -> Masses:
        return self.first + self.width * np.arange(len(self.without))

    def moved_to(self, first: float, width: float) -> RatioPart:
        """Split the points to those of a coarser grid."""
        floors = first + width * np.floor((self.points - first) / width + 1e-9)
        count = int(np.rint((floors[-1] - first) / width)) + 2
        return self._split(floors, self.without, self.with_record, first, width, count)

    def extended_to(self, first: float) -> RatioPart:
        """Return the same part with zeros before it, from `first` on."""
        before = np.zeros(round((self.first - first) / self.width))
        return RatioPart(
            first,
            self.width,
            np.concatenate([before, self.without]),
            np.concatenate([before, self.with_record]),
        )

    def summed(self, other: RatioPart, steps: int) -> tuple[Masses, Masses, Masses]:
        """Return R and its masses with the record and without it, for sums of t numbers of which one is of this part.

        The others may be of `other`, a part of the same grid.
        """
        both = RatioPart(
            self.first,
            self.width,
            _added(self.without, other.without),
            _added(self.with_record, other.with_record),
        )
        length = scipy.fft.next_fast_len(both._length(steps), real=True)
        whole, whole_with, rest, rest_with = (
            scipy.fft.rfft(masses, length)
            for masses in (both.without, both.with_record, other.without, other.with_record)
        )
        with_record = whole_with * whole ** (steps - 1) - rest_with * rest ** (steps - 1)
        without = whole**steps - rest**steps
        values = (steps * self.first + self.width * np.arange(length)) / steps
        return values, *(np.maximum(scipy.fft.irfft(one, length), 0.0) for one in (with_record, without))

    def _length(self, steps: int) -> int:
        """Return how many points hold the sums but for a mass of 10⁻¹³, by Chernoff."""
        last = len(self.without) - 1
        places = np.arange(last + 1)
        best = steps * last + 1.0
        for order in np.geomspace(0.01, 100.0, 33) / max(last, 1):
            grown = np.exp(order * places)
            log_with, log_without = (
                math.log(float(masses @ grown)) for masses in (self.with_record, self.without)
            )
            best = min(best, (log_with + (steps - 1) * log_without + 30.0) / order)
        return max(math.ceil(best), last) + 2


def _normal_masses(z: Masses) -> Masses:
    """Φ of each cell, from the nearer tail so that small masses keep their digits."""
    left, right = np.diff(special.ndtr(z)), -np.diff(special.ndtr(-z))
    masses: Masses = np.where(z[:-1] > 0, right, left)
    return masses


def _added(a: Masses, b: Masses) -> Masses:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    out: Masses = longer.copy()
    out[: len(shorter)] += shorter
    return out


@lru_cache(maxsize=64)
def log_moments_of_mean(square: float, steps: int, largest: int) -> Orders:
    """Return log E_Q[R^k] for k = 0 … largest: t^(−k)·k!·[y^k] (Σ_i E[X^i]·y^i/i!)^t."""
    ks = np.arange(largest + 1)
    factorials = special.gammaln(ks + 1)
    base = ks * (ks - 1) * square / 2 - factorials
    power, left = None, steps
    while left:
        if left & 1:
            power = base if power is None else _log_product(power, base)
        base, left = _log_product(base, base), left >> 1
    assert power is not None
    logs: Orders = np.maximum(power + factorials - ks * math.log(steps), 0.0)
    return logs


def _log_product(a: Orders, b: Orders) -> Orders:
    """Multiply two power series whose coefficients are given by their logarithms."""
    return np.array([special.logsumexp(a[: k + 1] + b[k::-1]) for k in range(len(a))])


def _check_whole(rate: float) -> None:
    if rate != 1:
        raise ValueError(f"Expected rate 1 with an AllocationEvent, whose steps say how often, got {rate}.")

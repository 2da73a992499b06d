"""Choose every setting of the private linear probe by one rule.

The rule takes N, the classes, (ε, δ) and the spectrum of the features.

A run at (ε, δ) on all N records is one Gaussian of parameter μ = √T/σ, whatever T is. Noise that is never contracted
grows in the weights to std τC/(μN), τ = lr·T the length of the path. So with s = √(μN):

    τ = μN/C     the noise of a weight would reach one: longer paths add noise faster than signal. On tables C = ½
                 and steps that fall linearly to zero, from 4/3 of this length
    d = 2s       effective dimensions (Σλ)²/Σλ² that the budget can tell from noise; α is the least rescaling that
                 reaches it, 0 where the features reach it by themselves (pretrained ones often do)
    k ≤ 6s       directions; beyond them nothing is left (all of a table's: noise has shuffled the small ones)
    m(m+1)/2 ≤ 6s  products of the leading m directions join where a table has fewer than d columns: the budget could
                 tell more directions from noise than there are
    T = 1.5 s·max(1, 5/classes)  enough that a step is stable; more steps cost time and no accuracy
    f = w/(μN/10)², from 1% to 10%  part of the budget for a mean of w coordinates, whose noise is √w/(μN√f) long
                 beside rows of length one
    √(2w)/(μN√f) ≤ ¼  else second moments are not worth their part f = 8%: noise alone would have such an eigenvalue,
                 and those of rows of length one add up to one
    √(m/f)/(μN) ≤ 0.15  else histograms of m columns of numbers are not worth their part f = 8%: a bin's noise would be
                 15% of all records. Where they are, numbers become cosines of their ranks, and no products join

The constants were chosen on Gaussian mixtures, on images of MNIST and on twelve tables of KEEL, never on the data that
docs/linear_probe.md measures; those of ranks on fifteen tables that docs/results/tables.md names.
All settings but α and k are known before any record is seen, as the accountant demands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from jaxtyping import Float
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor

from quietgrad.features.moments import noise_eigenvalue

CLIP = 0.25
"""Of heads on images. Errors are at most √2 long and start near one. A short clip takes little from the many small
errors that remain and lowers the noise; an eighth is no better than a quarter."""
TABLE_CLIP, TABLE_PATH = 0.5, 4 / 3
"""Of heads on tables, whose steps shrink linearly to nothing: (4/3)·∫(1 − u)du = 2/3 of the path, and noise of
(4/3)·√∫(1 − u)²du = 0.77 in place of one. Late steps of an even length move the head by noise more than by signal."""
TABLE_NOISE = TABLE_PATH * math.sqrt(1 / 3)
DIMENSIONS = 2.0
DIRECTIONS = 6.0
STEPS = 1.5
STABLE_CLASSES = 5
FEWEST_STEPS = 8
LEAST_MEAN_SHARE, MOST_MEAN_SHARE = 0.01, 0.10
MEAN_NOISE = 0.1
"""Length of the noise in a mean, beside rows of length one, that is worth paying for."""
MOMENTS_SHARE = 0.08
MOMENTS_NOISE = 0.25
"""The largest eigenvalue of noise that second moments of rows of length one stand out of."""
SQUARES_NOISE = 0.5
"""The same for their diagonal alone: part of an average mean square."""
CURVES_SHARE = 0.08
CURVES_NOISE = 0.15
"""Noise of a released bin, as a part of all records, up to which ranks are worth their part of the budget."""
LEAST_PER_CLASS = 10.0
"""μN per class below which the classes of the synthetic mixtures cannot be distinguished."""


Schedule = Literal["constant", "linear"]


class PrivacyWarning(UserWarning):
    """Something about the budget that the user should know."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the rule fixes before any record is seen.

    Args:
        signal: μN, how much longer a unit row, added up over all records, is than noise of the whole budget.
        dimension: effective dimensions to rescale to.
        directions: at most so many.
        schedule: of the learning rate; "linear" falls to zero.
    """

    signal: float
    steps: int
    lr: float
    clip: float
    dimension: float
    directions: int
    schedule: Schedule = "constant"

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.lr * (1 - step / self.steps if self.schedule == "linear" else 1.0)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise in a weight at the end, where none of it is contracted."""
        path = self.lr * self.steps * self.clip / self.signal
        return path * (math.sqrt(1 / 3) if self.schedule == "linear" else 1.0)


def settings(*, records: int, classes: int, epsilon: float, delta: float, table: bool = False) -> Settings:
    """The rule's settings for a linear head.

    Args:
        table: records are the columns of a table, not images or features of them.
    """
    mu = gaussian_parameter(epsilon, delta)
    resolution = math.sqrt(mu * records)
    steps = max(FEWEST_STEPS, math.ceil(STEPS * resolution * max(1.0, STABLE_CLASSES / classes)))
    clip, path = (TABLE_CLIP, TABLE_PATH) if table else (CLIP, 1.0)
    return Settings(
        signal=mu * records,
        steps=steps,
        lr=path * mu * records / clip / steps,
        clip=clip,
        dimension=DIMENSIONS * resolution,
        directions=math.ceil(DIRECTIONS * resolution),
        schedule="linear" if table else "constant",
    )


def gaussian_parameter(epsilon: float, delta: float) -> float:
    """Return μ of the Gaussian mechanism that is exactly (ε, δ)-private.

    Used to plan, never to account.

    δ = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)   (Balle, Wang 2018)
    """

    def excess(mu: float) -> float:
        far = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
        return float(norm.cdf(-epsilon / mu + mu / 2) - far - delta)

    return float(brentq(excess, 1e-6, 100.0 + epsilon))


def effective_dimension(variances: Float[Tensor, " k"]) -> float:
    """(Σλ)²/Σλ²: k for equal variances, one if a single direction has all of it."""
    values = variances.double()
    return float(values.sum() ** 2 / (values**2).sum())


def whitening(variances: Float[Tensor, " k"], dimension: float) -> float:
    """Return the least α in [0, 1] that reaches the effective dimension.

    The spectrum is λ^(1−α); 1 if no α reaches `dimension`.
    """
    values = (variances / variances[0]).double()

    def excess(alpha: float) -> float:
        return effective_dimension(values ** (1 - alpha)) - dimension

    if excess(0.0) >= 0:
        return 0.0
    if excess(1.0) <= 0:
        return 1.0
    return float(brentq(excess, 0.0, 1.0, xtol=1e-4))


def leading_products(columns: int, found: Settings) -> int:
    """Return m, the number of directions whose products join the row.

    0 if the columns are enough for the budget.
    """
    if columns >= found.dimension:
        return 0
    return min(columns, (math.isqrt(8 * found.directions + 1) - 1) // 2)


def mean_share(width: int, found: Settings) -> float:
    """Part of the squared budget for a mean of `width` coordinates."""
    share = width / (MEAN_NOISE * found.signal) ** 2
    return min(max(share, LEAST_MEAN_SHARE), MOST_MEAN_SHARE)


def moments_stand_out(width: int, found: Settings) -> bool:
    """Return whether all second moments of `width` columns exceed their noise."""
    return noise_eigenvalue(_moments_std(found), width) <= MOMENTS_NOISE


def squares_stand_out(width: int, found: Settings) -> bool:
    """Return whether mean squares of `width` columns exceed their noise."""
    return _moments_std(found) * width <= SQUARES_NOISE


def ranks_stand_out(numbers: int, found: Settings) -> bool:
    """Return whether histograms of `numbers` columns exceed their noise."""
    if numbers == 0:
        return False
    return math.sqrt(numbers / CURVES_SHARE) / found.signal <= CURVES_NOISE


def warning(*, records: int, classes: int, epsilon: float, delta: float) -> str | None:
    """Return a warning if noise will exceed the classes' signal, else None.

    It says how many records or what ε would be enough. Classes are 0 where a number is predicted.
    """
    needed = LEAST_PER_CLASS * max(2, classes)
    if gaussian_parameter(epsilon, delta) * records >= needed:
        return None
    enough = math.ceil(needed / gaussian_parameter(epsilon, delta))
    task = f"{classes} classes" if classes else "a regression"
    return (
        f"{records} records at ε = {epsilon:g} are few for {task}: the noise will be about as large as what can be "
        f"learned. It takes about {enough} records, or ε = {_epsilon_of(needed / records, delta):.2g}."
    )


def few_public(public: int, found: Settings) -> str | None:
    """Return a warning if public records have too few directions, else None."""
    if public - 1 >= min(found.directions, math.ceil(found.dimension)):
        return None
    return (
        f"{public} public records have {public - 1} directions, the budget could use {found.directions}. More public "
        "records, even unlabelled ones, would be worth something."
    )


def _moments_std(found: Settings) -> float:
    return 1 / (found.signal * math.sqrt(MOMENTS_SHARE))


def _epsilon_of(mu: float, delta: float) -> float:
    """The ε of a Gaussian mechanism of parameter μ, between 0.001 and 500."""

    def excess(logarithm: float) -> float:
        return gaussian_parameter(math.exp(logarithm), delta) - mu

    low, high = math.log(1e-3), math.log(500.0)
    return math.exp(brentq(excess, low, high)) if excess(low) < 0 < excess(high) else 500.0

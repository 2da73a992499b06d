"""Lower bounds with confidence: from counts of right and wrong guesses, and from Gaussian scores.

`alpha` is the probability that a bound is wrong (1 − confidence). A threshold must not be chosen on the scores it is
counted on: choose it on others (`best_threshold`), or divide alpha by the number of thresholds tried.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from jaxtyping import Float64
from numpy import ndarray


def proportion_at_least(successes: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson: the true proportion is below this with probability at most alpha."""
    _check_counts(successes, trials)
    return 0.0 if successes == 0 else float(scipy.stats.beta.ppf(alpha, successes, trials - successes + 1))


def proportion_at_most(successes: int, trials: int, alpha: float) -> float:
    """Clopper-Pearson from the other side."""
    return 1.0 - proportion_at_least(trials - successes, trials, alpha)


def epsilon_from_counts(
    caught: int, members: int, false_alarms: int, others: int, *, delta: float, alpha: float
) -> float:
    """ε ≥ max(log (TPR − δ)/FPR, log (TNR − δ)/FNR), every rate at its unfavourable end.

    Args:
        caught: members taken for members, out of `members`.
        false_alarms: others taken for members, out of `others`.
    """
    hit = proportion_at_least(caught, members, alpha / 2)
    alarm = proportion_at_most(false_alarms, others, alpha / 2)
    return max(_log_ratio(hit - delta, alarm), _log_ratio(1 - alarm - delta, 1 - hit), 0.0)


def mu_from_counts(caught: int, members: int, false_alarms: int, others: int, *, alpha: float) -> float:
    """μ ≥ Φ⁻¹(TPR) − Φ⁻¹(FPR) if the mechanism is μ-GDP for some μ; needs no Gaussian scores."""
    hit = proportion_at_least(caught, members, alpha / 2)
    alarm = proportion_at_most(false_alarms, others, alpha / 2)
    return (
        max(float(scipy.special.ndtri(hit) - scipy.special.ndtri(alarm)), 0.0)
        if hit > 0 and alarm < 1
        else 0.0
    )


def slope_over_noise(
    signal: Float64[ndarray, " n"], scores: Float64[ndarray, " n"], *, alpha: float
) -> float:
    """A lower bound on a/τ for scores = a·signal + c + N(0, τ²): exact, by the noncentral t distribution.

    With signal 1 for members and 0 for others this is μ of a Gaussian mechanism.
    """
    n = len(scores)
    if n < 3:
        raise ValueError(f"Expected at least 3 scores, got {n}. Insert more canaries or audit more steps.")
    centred = signal - signal.mean()
    spread = float(centred @ centred)
    if spread == 0:
        return 0.0
    slope = float(centred @ scores) / spread
    residual = scores - scores.mean() - slope * centred
    noise = math.sqrt(float(residual @ residual) / (n - 2))
    if noise <= 1e-12 * abs(slope):
        return math.inf if slope > 0 else 0.0
    lowest = _noncentrality_at_least(slope * math.sqrt(spread) / noise, n - 2, alpha)
    return max(lowest / math.sqrt(spread), 0.0)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of the Gaussian mechanism: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    first, second = (
        scipy.special.log_ndtr(mu / 2 - epsilon / mu),
        scipy.special.log_ndtr(-mu / 2 - epsilon / mu),
    )
    return float(math.exp(first) - math.exp(epsilon + second))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at which the Gaussian mechanism of sensitivity / noise = μ is (ε, δ)-private; 0 if it is at ε = 0."""
    if mu <= 0 or gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    most = mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    return float(
        scipy.optimize.brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, most, xtol=1e-10)
    )


def scores_needed(mu: float, *, alpha: float, share: float) -> int:
    """About how many in/out scores make `slope_over_noise` reach `share` of the true μ."""
    z = float(scipy.special.ndtri(1 - alpha))
    return math.ceil((z / (1 - share)) ** 2 * (4 / mu**2 + 0.5))


def best_threshold(
    members: Float64[ndarray, " n"], others: Float64[ndarray, " m"], *, delta: float, alpha: float
) -> float:
    """The threshold of the largest Clopper-Pearson ε on these scores; count it on others."""
    candidates = np.unique(np.quantile(np.concatenate([members, others]), np.linspace(0, 1, 201)))
    bounds = [
        epsilon_from_counts(
            int((members >= t).sum()),
            len(members),
            int((others >= t).sum()),
            len(others),
            delta=delta,
            alpha=alpha,
        )
        for t in candidates
    ]
    return float(candidates[int(np.argmax(bounds))])


def _noncentrality_at_least(t: float, freedom: int, alpha: float) -> float:
    exact = float(scipy.special.nctdtrinc(freedom, 1 - alpha, t)) if abs(t) < 200 else math.nan
    if math.isfinite(exact):
        return exact
    # For large t the t distribution is normal to well below what matters here.
    return t - float(scipy.special.ndtri(1 - alpha)) * math.sqrt(1 + t**2 / (2 * freedom))


def _log_ratio(upper: float, lower: float) -> float:
    if upper <= 0:
        return 0.0
    return math.log(upper / lower) if lower > 0 else math.inf


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"Expected 0 <= successes <= trials and trials >= 1, got {successes} of {trials}.")

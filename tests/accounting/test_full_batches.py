"""Without sampling the accountant has an exact reference: the analytic Gaussian mechanism.

δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),  μ = √T/σ   (Balle and Wang 2018), in log space so that nothing overflows.
"""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr

from quietgrad.accounting import GaussianEvent, Phase, epsilon
from quietgrad.accounting.pld import pld_epsilon


def exact(mu: float, delta: float) -> float:
    def excess(value: float) -> float:
        above, below = log_ndtr(mu / 2 - value / mu), value + log_ndtr(-mu / 2 - value / mu)
        return float(above + math.log1p(-math.exp(min(below - above, -1e-300))) - math.log(delta))

    return float(brentq(excess, 0.0, mu**2 + 100 * mu + 50))


def phases(sigma: float, steps: int, rate: float = 1.0) -> list[Phase]:
    return [Phase(event=GaussianEvent(noise_multiplier=sigma), rate=rate, count=steps)]


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-15])
@pytest.mark.parametrize("sigma", [0.03, 0.05, 0.07, 0.1, 1.0, 20.0])
def test_the_pld_is_the_analytic_gaussian_mechanism(sigma: float, delta: float, steps: int) -> None:
    reference = exact(math.sqrt(steps) / sigma, delta)
    found = pld_epsilon(phases(sigma, steps), delta)
    assert found.converged
    assert reference * (1 - 1e-9) <= found.epsilon <= reference * (1 + 5e-4)


def test_the_value_that_once_overflowed() -> None:
    assert epsilon(phases(0.05, 1), 1e-9) == pytest.approx(319.08, rel=1e-4)


@pytest.mark.parametrize("missing", [1e-3, 1e-6, 1e-12, 1e-15])
def test_a_rate_just_below_one_costs_as_much_as_one(missing: float) -> None:
    """Losses then go down to log(1 − q), where exp(l) − 1 has no digits left."""
    whole, almost = (
        pld_epsilon(phases(0.1, 1, rate), 1e-9, tolerance=1e-5).epsilon for rate in (1.0, 1.0 - missing)
    )
    # Subsampling by q costs at least log(1 + (e^ε − 1) q) at δ q: here, for all that 1e-4 can tell, ε itself.
    assert almost == pytest.approx(whole, rel=2e-4)

"""Law 7: epsilon >= 0, monotone, the same however a run is cut into phases, and never below the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as native

from quietgrad.accounting import GaussianEvent, JointEvent, Phase, delta, epsilon, pld
from quietgrad.methods.gip import MallowsSelection
from tests.accounting.settings import DELTA, flat

SETTINGS = [(0.7, 0.02, 200), (1.0, 0.1, 50), (2.0, 1 / 60, 3000), (5.0, 1.0, 10), (30.0, 0.25, 400)]


@pytest.mark.parametrize(("noise", "rate", "steps"), SETTINGS)
def test_monotone_in_steps_rate_and_noise(noise: float, rate: float, steps: int) -> None:
    here = epsilon(flat(noise, rate, steps), DELTA)
    assert here > 0
    assert epsilon(flat(noise, rate, 2 * steps), DELTA) > here
    assert epsilon(flat(noise, rate / 2, steps), DELTA) < here
    assert epsilon(flat(1.1 * noise, rate, steps), DELTA) < here
    assert epsilon(flat(noise, rate, steps), 10 * DELTA) < here


@pytest.mark.parametrize(("noise", "rate", "steps"), SETTINGS)
def test_equal_phases_are_one_run(noise: float, rate: float, steps: int) -> None:
    whole = epsilon(flat(noise, rate, steps), DELTA)
    parts = flat(noise, rate, steps // 2) + flat(noise, rate, steps - steps // 2)
    assert epsilon(parts, DELTA) == whole
    # Two phases that differ in the last digit only take the heterogeneous way.
    nearly = flat(noise, rate, steps // 2) + flat(noise * (1 + 1e-9), rate, steps - steps // 2)
    assert epsilon(nearly, DELTA) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize(("noise", "rate", "steps"), SETTINGS[:4])
def test_never_below_the_optimistic_estimate_of_a_second_implementation(
    noise: float, rate: float, steps: int
) -> None:
    options = {"sampling_prob": rate, "value_discretization_interval": 1e-4}
    above = native.from_gaussian_mechanism(noise, **options).self_compose(steps).get_epsilon_for_delta(DELTA)
    below = native.from_gaussian_mechanism(
        noise, pessimistic_estimate=False, use_connect_dots=False, **options
    )
    ours = epsilon(flat(noise, rate, steps), DELTA, accountant="pld")
    assert below.self_compose(steps).get_epsilon_for_delta(DELTA) < ours
    assert ours == pytest.approx(above, rel=1e-3)


def test_pessimistic_and_optimistic_distributions_enclose_the_truth() -> None:
    phases = flat(1.5, 0.02, 400)
    truth = epsilon(phases, DELTA)
    for width in (1e-3, 1e-4, 1e-5):
        above = pld(phases, discretisation=width).get_epsilon_for_delta(DELTA)
        below = pld(phases, discretisation=width, pessimistic=False).get_epsilon_for_delta(DELTA)
        assert below < truth < above * (1 + 1e-4)
    assert above - below < 0.01


def analytic(sigma: float, eps: float) -> float:
    """delta of one Gaussian: Phi(1/(2 sigma) - eps sigma) - exp(eps) Phi(-1/(2 sigma) - eps sigma)."""
    half = 1 / (2 * sigma)
    return _phi(half - eps * sigma) - math.exp(eps) * _phi(-half - eps * sigma)


def test_one_unsampled_gaussian_is_the_analytic_one() -> None:
    for sigma in (0.5, 1.0, 3.0):
        for eps in (0.1, 1.0, 2.0):
            found = delta(flat(sigma, 1.0, 1), eps)
            assert found == pytest.approx(analytic(sigma, eps), rel=1e-3)
            assert found >= analytic(sigma, eps) * (1 - 1e-9)


@pytest.mark.parametrize("power", [7, 9, 12, 16, 20])
def test_small_deltas_are_exact_for_composed_gaussians(power: int) -> None:
    # 50 Gaussians of multiplier s sqrt(50) are one of multiplier s: the FFT must not drown the small tail.
    found = epsilon(flat(4.0 * math.sqrt(50), 1.0, 50), 10.0**-power, accountant="pld")
    assert analytic(4.0, found * (1 + 1e-9)) <= 10.0**-power
    assert analytic(4.0, found * (1 - 1e-3)) > 10.0**-power


def test_a_selection_with_nothing_to_choose_is_free() -> None:
    free = (
        MallowsSelection(theta=0.0, group_size=8, kept=3, groups=5),
        MallowsSelection(theta=1.0, group_size=8, kept=8, groups=5),
    )
    event = JointEvent(gaussian=GaussianEvent(noise_multiplier=2.0), selections=free)
    assert epsilon([Phase(event=event, rate=0.1, count=50)], DELTA) == epsilon(flat(2.0, 0.1, 50), DELTA)
    assert epsilon([Phase(event=free[0], rate=0.1, count=50)], DELTA) == 0


@pytest.mark.parametrize("bad", [0, 1, 2, -0.1, math.nan])
def test_meaningless_deltas_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon(flat(1, 0.1, 1), bad)


def test_meaningless_events_are_refused() -> None:
    for noise in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="noise_multiplier"):
            GaussianEvent(noise_multiplier=noise)
    for rate in (0.0, 1.01, -0.5, math.nan):
        with pytest.raises(ValueError, match="rate"):
            Phase(event=GaussianEvent(noise_multiplier=1), rate=rate, count=1)
    with pytest.raises(ValueError, match="count"):
        Phase(event=GaussianEvent(noise_multiplier=1), rate=0.5, count=-1)
    with pytest.raises(ValueError, match="kept"):
        MallowsSelection(theta=1.0, group_size=4, kept=5, groups=1)
    with pytest.raises(ValueError, match="epsilon"):
        delta(flat(1, 0.1, 1), -1.0)


@pytest.mark.wrong_types
def test_half_a_step_is_refused() -> None:
    half: Any = 1.5
    with pytest.raises(ValueError, match="count"):
        Phase(event=GaussianEvent(noise_multiplier=1), rate=0.5, count=half)


def _phi(x: float) -> float:
    return float(0.5 * math.erfc(-x / np.sqrt(2)))

"""The price of draws that are cut at B records: exact small cases, dp-accounting's bound, and limits."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy import stats

from quietgrad.accounting import (
    GaussianEvent,
    Phase,
    TruncatedEvent,
    delta,
    epsilon,
    event_from_dict,
    event_to_dict,
)
from quietgrad.accounting.truncation import rates

SIGMA = 0.9
GAUSSIAN = GaussianEvent(noise_multiplier=SIGMA)


def truncated(units: int, at_most: int) -> TruncatedEvent:
    return TruncatedEvent(event=GAUSSIAN, units=units, at_most=at_most)


def kept_sets(units: int, rate: float, at_most: int) -> dict[frozenset[int], float]:
    """Every set of used records with its probability, by enumeration of draws and subsets."""
    chances: dict[frozenset[int], float] = {}
    for pattern in itertools.product((0, 1), repeat=units):
        drawn = [i for i in range(units) if pattern[i]]
        chance = math.prod(rate if one else 1 - rate for one in pattern)
        subsets = list(itertools.combinations(drawn, min(at_most, len(drawn))))
        for kept in subsets:
            chances[frozenset(kept)] = chances.get(frozenset(kept), 0.0) + chance / len(subsets)
    return chances


@pytest.mark.parametrize("at_most", [1, 2, 3, 4, 6])
def test_weights_and_rates_against_enumeration(at_most: int) -> None:
    units, rate = 6, 0.35
    sizes: dict[int, list[float]] = {}
    for kept, chance in kept_sets(units, rate, at_most).items():
        total = sizes.setdefault(len(kept - {0}), [0.0, 0.0])
        total[0] += chance
        total[1] += chance * (0 in kept)
    found: dict[float, float] = {}
    for weight, used in sizes.values():
        found[round(used / weight, 9)] = found.get(round(used / weight, 9), 0.0) + weight
    claimed: dict[float, float] = {}
    for weight, one in rates(rate, units, at_most):
        claimed[round(one, 9)] = claimed.get(round(one, 9), 0.0) + weight
    assert claimed == pytest.approx(found)


@pytest.mark.parametrize("at_most", [1, 2, 3])
@pytest.mark.parametrize("eps", [-0.4, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "values", [(1, 1, 1, 1, 1), (-1, -1, -1, -1, -1), (1, -1, 1, -1, 0), (0, 0, 0, 0, 0)]
)
def test_no_step_of_five_records_costs_more(at_most: int, eps: float, values: tuple[int, ...]) -> None:
    """δ of the step itself, by numerical integration of both densities, for records that conspire."""
    units, rate = 5, 0.4
    grid = np.linspace(-14, 14, 6001)
    with_record, without = np.zeros_like(grid), np.zeros_like(grid)
    for kept, chance in kept_sets(units, rate, at_most).items():
        others = sum(values[i] for i in kept - {0})
        without += chance * stats.norm.pdf(grid, others, SIGMA)
        with_record += chance * stats.norm.pdf(grid, others + (0 in kept), SIGMA)
    width = grid[1] - grid[0]
    event = truncated(units, at_most)
    claims = event.step_loss(rate, 1e-3)
    for first, second, loss in ((with_record, without, claims.remove), (without, with_record, claims.add)):
        exact = float(np.maximum(first - math.exp(eps) * second, 0.0).sum() * width)
        gain = np.maximum(-np.expm1(np.minimum(eps - loss.losses, 0.0)), 0.0)
        assert exact <= loss.infinity + float(loss.mass @ gain) + 1e-7


@pytest.mark.parametrize(("units", "at_most"), [(3, 1), (4, 2), (2, 2)])
@pytest.mark.parametrize("eps", [0.1, 0.6])
def test_two_steps_by_brute_force(units: int, at_most: int, eps: float) -> None:
    """Both releases together, integrated over the plane; the others conspire."""
    rate, grid = 0.4, np.linspace(-9, 9, 701)
    with_record, without = np.zeros_like(grid), np.zeros_like(grid)
    for kept, chance in kept_sets(units, rate, at_most).items():
        others = sum((-1) ** i for i in kept - {0})
        without += chance * stats.norm.pdf(grid, others, SIGMA)
        with_record += chance * stats.norm.pdf(grid, others + (0 in kept), SIGMA)
    first, second = np.outer(with_record, with_record), np.outer(without, without)
    area = (grid[1] - grid[0]) ** 2
    exact = max(
        float(np.maximum(a - math.exp(eps) * b, 0.0).sum() * area)
        for a, b in ((first, second), (second, first))
    )
    claimed = delta([Phase(event=truncated(units, at_most), rate=rate, count=2)], eps)
    assert exact <= claimed + 1e-6
    if at_most == units:
        assert claimed == pytest.approx(delta([Phase(event=GAUSSIAN, rate=rate, count=2)], eps), rel=1e-3)


def test_generous_bounds_cost_nothing_and_small_ones_more() -> None:
    plain = epsilon([Phase(event=GAUSSIAN, rate=0.01, count=300)], 1e-5)
    values = [
        epsilon([Phase(event=truncated(10_000, most), rate=0.01, count=300)], 1e-5)
        for most in (10_000, 150, 130, 110)
    ]
    assert values[0] == pytest.approx(plain, rel=1e-6)
    assert values[1] == pytest.approx(plain, rel=1e-3)
    assert plain < values[2] < values[3]


@pytest.mark.parametrize(
    ("units", "rate", "at_most"), [(10_000, 0.01, 110), (10_000, 0.01, 130), (20, 0.2, 5), (20, 0.5, 19)]
)
def test_never_above_the_bound_of_dp_accounting(units: int, rate: float, at_most: int) -> None:
    """Theirs covers add-or-remove too, where another record takes the place: so it is larger."""
    theirs = dp_pld.from_truncated_subsampled_gaussian_mechanism(
        units, rate, at_most, SIGMA, value_discretization_interval=1e-3
    ).self_compose(20)
    ours = epsilon([Phase(event=truncated(units, at_most), rate=rate, count=20)], 1e-5)
    assert ours <= theirs.get_epsilon_for_delta(1e-5)
    assert ours > 0.99 * epsilon([Phase(event=GAUSSIAN, rate=rate, count=20)], 1e-5)


def test_rdp_is_no_smaller_than_the_pld() -> None:
    run = [Phase(event=truncated(1_000, 60), rate=0.05, count=200)]
    assert epsilon(run, 1e-5, accountant="rdp") > epsilon(run, 1e-5)
    plain = [Phase(event=GAUSSIAN, rate=0.05, count=200)]
    whole = [Phase(event=truncated(1_000, 1_000), rate=0.05, count=200)]
    assert epsilon(whole, 1e-5, accountant="rdp") == pytest.approx(epsilon(plain, 1e-5, accountant="rdp"))


def test_it_survives_json_and_refuses_nonsense() -> None:
    event = truncated(1_000, 60)
    assert event_from_dict(json.loads(json.dumps(event_to_dict(event)))) == event
    assert delta([Phase(event=event, rate=0.05, count=10)], 1.0) > 0
    for wrong in ({"units": 0, "at_most": 5}, {"units": 10, "at_most": 0}, {"units": 10, "at_most": 2.5}):
        with pytest.raises(ValueError, match="Expected"):
            TruncatedEvent(event=GAUSSIAN, **wrong)

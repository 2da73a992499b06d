"""The rule: settings follow from N, classes, the budget and the spectrum, and from nothing else."""

from __future__ import annotations

import math

import pytest
import torch

from quietgrad._linear_probe.rule import (
    LEAST_MEAN_SHARE,
    MEAN_NOISE,
    MOST_MEAN_SHARE,
    TABLE_NOISE,
    effective_dimension,
    gaussian_parameter,
    leading_products,
    mean_share,
    moments_stand_out,
    settings,
    squares_stand_out,
    warning,
    whitening,
)
from quietgrad.audit.bounds import gaussian_delta

DELTA = 1e-5


@pytest.mark.parametrize("epsilon", [0.01, 0.15, 1.0, 8.0, 60.0])
def test_the_gaussian_parameter_gives_delta(epsilon: float) -> None:
    mu = gaussian_parameter(epsilon, DELTA)
    assert gaussian_delta(mu, epsilon) == pytest.approx(DELTA, rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.15, 2.0])
@pytest.mark.parametrize("records", [500, 12_000, 60_000])
@pytest.mark.parametrize("classes", [2, 10, 26])
def test_a_weight_that_nothing_contracts_would_get_noise_of_one(
    epsilon: float, records: int, classes: int
) -> None:
    found = settings(records=records, classes=classes, epsilon=epsilon, delta=DELTA)
    sigma = math.sqrt(found.steps) / gaussian_parameter(epsilon, DELTA)
    noise = found.lr * math.sqrt(found.steps) * sigma * found.clip / records
    assert noise == pytest.approx(1.0)
    assert found.noise == pytest.approx(1.0)
    assert [found.rate(step) for step in (0, found.steps - 1)] == [found.lr, found.lr]


def test_steps_on_a_table_shrink_and_leave_the_noise_that_probabilities_expect() -> None:
    found = settings(records=12_000, classes=2, epsilon=1.0, delta=DELTA, table=True)
    sigma = math.sqrt(found.steps) / gaussian_parameter(1.0, DELTA)
    rates = [found.rate(step) for step in range(found.steps)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.01 * rates[0]
    noise = math.sqrt(sum(rate**2 for rate in rates)) * sigma * found.clip / 12_000
    assert found.noise == pytest.approx(TABLE_NOISE)
    assert noise == pytest.approx(TABLE_NOISE, rel=0.01)


def test_more_budget_means_more_dimensions_and_steps() -> None:
    small, large = (
        settings(records=12_000, classes=10, epsilon=epsilon, delta=DELTA) for epsilon in (0.15, 2.0)
    )
    assert small.dimension < large.dimension
    assert small.steps < large.steps
    assert small.directions < large.directions


def test_whitening_is_the_least_that_reaches_the_dimension() -> None:
    variances = torch.arange(1, 201, dtype=torch.float64) ** -1.5
    alpha = whitening(variances, 60.0)
    assert 0 < alpha < 1
    assert effective_dimension(variances ** (1 - alpha)) == pytest.approx(60.0, rel=1e-2)


def test_features_that_reach_the_dimension_are_left_alone() -> None:
    assert whitening(torch.ones(100), 50.0) == 0.0
    assert whitening(torch.tensor([1.0, 0.5]), 50.0) == 1.0


def test_products_join_only_where_columns_are_fewer_than_the_budget_can_tell() -> None:
    found = settings(records=12_000, classes=10, epsilon=2.0, delta=DELTA)
    assert leading_products(math.ceil(found.dimension), found) == 0
    assert leading_products(3, found) == 3
    most = leading_products(math.ceil(found.dimension) - 1, found)
    assert most * (most + 1) // 2 <= found.directions < (most + 1) * (most + 2) // 2


def test_a_mean_gets_what_makes_its_noise_short_within_limits() -> None:
    found = settings(records=2000, classes=2, epsilon=1.0, delta=DELTA)
    share = mean_share(100, found)
    assert LEAST_MEAN_SHARE < share < MOST_MEAN_SHARE
    assert math.sqrt(100 / share) / found.signal == pytest.approx(MEAN_NOISE)
    assert mean_share(1, found) == LEAST_MEAN_SHARE
    assert mean_share(100_000, found) == MOST_MEAN_SHARE


def test_moments_stand_out_of_their_noise_where_records_are_many() -> None:
    few, many = (settings(records=records, classes=2, epsilon=0.5, delta=DELTA) for records in (400, 12_000))
    for stand_out in (moments_stand_out, squares_stand_out):
        assert not stand_out(30, few)
        assert stand_out(30, many)
        assert not stand_out(100_000, many)


def test_too_few_records_are_refused_with_the_number_it_takes() -> None:
    assert warning(records=12_000, classes=10, epsilon=0.15, delta=DELTA) is None
    said = warning(records=100, classes=10, epsilon=0.15, delta=DELTA)
    assert said is not None
    needed = int(said.split("about ")[2].split(" records")[0])
    assert warning(records=needed, classes=10, epsilon=0.15, delta=DELTA) is None
    epsilon = float(said.split("ε = ")[2].rstrip("."))
    assert warning(records=100, classes=10, epsilon=1.1 * epsilon, delta=DELTA) is None

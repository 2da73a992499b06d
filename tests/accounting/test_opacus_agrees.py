"""A second implementation: Opacus's PRV accountant, within its stated error, on a grid of settings."""

from __future__ import annotations

import itertools

import pytest

from quietgrad.accounting import epsilon
from tests.accounting.settings import flat

accountants = pytest.importorskip("opacus.accountants", reason="opacus is in the bench extra")

EPS_ERROR = 0.01
GRID = list(itertools.product((0.7, 1.0, 1.5, 3.0), (0.004, 0.02, 0.1), (100, 1000), (1e-5, 1e-7)))


def test_the_grid_is_large_enough() -> None:
    assert len(GRID) >= 30


@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), GRID)
def test_epsilon_lies_within_the_stated_error_of_opacus(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    accountant = accountants.PRVAccountant()
    accountant.history = [(noise, rate, steps)]
    composed = accountant._get_dprv(eps_error=EPS_ERROR, delta_error=delta / 1000)
    lower, _, upper = composed.compute_epsilon(delta, delta / 1000, EPS_ERROR)
    assert upper - lower < 3 * EPS_ERROR
    assert lower <= epsilon(flat(noise, rate, steps), delta, accountant="pld") <= upper

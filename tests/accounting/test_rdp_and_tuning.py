"""RDP: the traps of dp-accounting, the joint event, and the price of tuning."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from quietgrad.accounting import (
    GaussianEvent,
    JointEvent,
    Phase,
    epsilon,
    repeat_and_select,
)
from quietgrad.accounting.pairs import subsample
from quietgrad.accounting.rdp import rdp
from quietgrad.methods.gip import MallowsSelection
from tests.accounting.settings import DELTA, flat

JOINT = JointEvent(
    gaussian=GaussianEvent(noise_multiplier=2.0),
    selections=(MallowsSelection(theta=0.02, group_size=16, kept=4, groups=50),),
)


@pytest.mark.parametrize("sigma", [2, np.float32(2), np.int64(2), np.float64(2)])
def test_the_type_of_sigma_changes_nothing(sigma: Any) -> None:
    assert type(GaussianEvent(noise_multiplier=sigma).noise_multiplier) is float
    assert GaussianEvent(noise_multiplier=sigma) == GaussianEvent(noise_multiplier=2.0)
    for accountant in ("rdp", "best"):
        found = epsilon(flat(sigma, 0.05, 100), DELTA, accountant=accountant)
        assert found == epsilon(flat(2.0, 0.05, 100), DELTA, accountant=accountant)


def test_dp_accounting_still_drops_an_integer_sigma_inside_a_composed_event() -> None:
    """Why events cast: if this fails, the trap is gone upstream."""

    def price(sigma: Any) -> float:
        inner = dp_event.ComposedDpEvent([dp_event.GaussianDpEvent(s) for s in (sigma, 1.0)])
        accountant = RdpAccountant()
        accountant.compose(dp_event.PoissonSampledDpEvent(0.05, inner), 100)
        return float(accountant.get_epsilon(DELTA))

    assert price(8) < 0.2 * price(8.0)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_rdp_of_a_joint_event_is_the_moment_of_its_loss(rate: float) -> None:
    orders, values = rdp([Phase(event=JOINT, rate=rate, count=1)])
    loss = subsample(JOINT.loss(1e-3), rate, 1e-3).remove
    for order in (2.0, 3.0, 8.0):
        numeric = loss.log_mgf(order - 1) / (order - 1)
        assert values[list(orders).index(order)] == pytest.approx(numeric, rel=1e-4)


def test_rdp_of_a_joint_event_is_above_its_pld_and_above_its_gaussian() -> None:
    phases = [Phase(event=JOINT, rate=0.1, count=200)]
    by_rdp = epsilon(phases, DELTA, accountant="rdp")
    assert by_rdp > epsilon(phases, DELTA, accountant="pld")
    assert by_rdp > epsilon(flat(2.0, 0.1, 200), DELTA, accountant="rdp")
    assert by_rdp < 1.2 * epsilon(phases, DELTA)


@pytest.mark.parametrize(
    ("tries", "shape"), [("logarithmic", 0.0), ("geometric", 1.0), ("poisson", math.inf)]
)
def test_repeat_and_select_is_that_of_dp_accounting(tries: Any, shape: float) -> None:
    step = dp_event.PoissonSampledDpEvent(1 / 60, dp_event.GaussianDpEvent(1.9765))
    run = dp_event.SelfComposedDpEvent(step, 3000)
    accountant = RdpAccountant()
    accountant.compose(dp_event.RepeatAndSelectDpEvent(run, mean=10.0, shape=shape))
    found = repeat_and_select(flat(1.9765, 1 / 60, 3000), DELTA, 10.0, tries=tries)
    assert found == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-6)
    assert 3.4 < found < 5.0


def test_tuning_costs_more_than_one_run_and_grows_with_the_tries() -> None:
    phases = flat(1.9765, 1 / 60, 3000)
    assert epsilon(phases, DELTA, accountant="rdp") < repeat_and_select(phases, DELTA, 2)
    assert repeat_and_select(phases, DELTA, 2) < repeat_and_select(phases, DELTA, 50)
    assert repeat_and_select(flat(0, 0.1, 3), DELTA, 2) == math.inf
    with pytest.raises(ValueError, match="mean_tries"):
        repeat_and_select(phases, DELTA, 0.5)


def test_orders_that_do_not_converge_are_left_out_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Each would be a line on the screen of whoever plans a run with bands."""
    wide = [Phase(event=GaussianEvent(noise_multiplier=0.945), rate=0.32, count=10)]
    before = logging.getLogger("absl").level
    _, values = rdp(wide)
    assert np.isinf(values).any()
    assert np.isfinite(values).any()
    assert not caplog.records
    assert logging.getLogger("absl").level == before

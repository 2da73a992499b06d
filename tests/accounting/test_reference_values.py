"""The reference table comes out of the library."""

from __future__ import annotations

import math

import pytest

from quietgrad.accounting import (
    GaussianEvent,
    JointEvent,
    Phase,
    attack_advantage,
    coalesce,
    delta,
    effective_multiplier,
    epsilon,
)
from quietgrad.methods.gip import MallowsSelection
from tests.accounting.settings import DELTA, REFERENCE, RELATIVE, ROUNDING, Row, flat


@pytest.mark.parametrize("row", REFERENCE, ids=lambda row: f"{row.noise}-{row.steps}")
def test_pld_and_rdp_of_the_reference_table(row: Row) -> None:
    assert epsilon(row.phases, DELTA) == pytest.approx(row.pld, rel=RELATIVE, abs=ROUNDING)
    assert epsilon(row.phases, DELTA, accountant="rdp") == pytest.approx(row.rdp, rel=RELATIVE, abs=ROUNDING)


@pytest.mark.parametrize(("each", "expected"), [(2.795, 2.0), (1.515, 5.0), (1.204, 8.0)])
def test_gep_with_the_paper_split_on_the_first_row(each: float, expected: float) -> None:
    both = effective_multiplier([each, each])
    assert epsilon(flat(both, 1 / 60, 3000), DELTA) == pytest.approx(expected, rel=RELATIVE)


def test_two_releases_of_one_batch_are_one_product_not_two_steps() -> None:
    together = epsilon(flat(effective_multiplier([math.sqrt(2)] * 2), 1 / 60, 3000), DELTA)
    one_by_one = epsilon(flat(math.sqrt(2), 1 / 60, 6000), DELTA)
    assert together == pytest.approx(5.690, rel=RELATIVE)
    assert one_by_one == pytest.approx(4.672, rel=RELATIVE)


def test_two_phases() -> None:
    phases = flat(1.5, 1 / 60, 900) + flat(1.4, 1 / 60, 2100)
    assert epsilon(phases, DELTA) == pytest.approx(3.1285, rel=RELATIVE)
    assert epsilon(phases, DELTA, accountant="rdp") == pytest.approx(3.408, rel=RELATIVE)


def test_joint_mallows_selection_of_the_paper_sized_model() -> None:
    selection = MallowsSelection(theta=3.08e-5, group_size=256, kept=26, groups=10_672)
    event = JointEvent(gaussian=GaussianEvent(noise_multiplier=1.01 * 10.120), selections=(selection,))
    phases = [Phase(event=event, rate=4096 / 45_000, count=875)]
    assert epsilon(phases, DELTA) == pytest.approx(1.000, rel=5e-3)
    # The selection has a price: without it the same noise costs visibly less.
    assert epsilon(flat(1.01 * 10.120, 4096 / 45_000, 875), DELTA) < 0.992


def test_a_grid_fine_enough_where_the_usual_one_is_not() -> None:
    # dp-accounting at 1e-3, 1e-4, 1e-5: .0857, .0298, .0274; RDP: .0324.
    phases = flat(10, 1e-3, 10_000)
    assert epsilon(phases, DELTA) == pytest.approx(0.0274, abs=1e-4)
    assert epsilon(phases, DELTA, accountant="rdp") == pytest.approx(0.0324, abs=1e-4)


def test_delta_inverts_epsilon_and_bounds_every_attack() -> None:
    phases = flat(1.9765, 1 / 60, 3000)
    assert delta(phases, epsilon(phases, DELTA)) == pytest.approx(DELTA, rel=2e-3)
    assert attack_advantage(phases) == pytest.approx(delta(phases, 0.0))
    # One unsampled Gaussian: TPR - FPR is at most 2 Phi(1 / (2 sigma)) - 1.
    assert attack_advantage(flat(2.0, 1.0, 1)) == pytest.approx(math.erf(0.25 / math.sqrt(2)), rel=1e-4)


def test_no_noise_is_infinite_and_no_steps_are_free() -> None:
    assert epsilon(flat(0, 0.1, 1), DELTA) == math.inf
    assert epsilon(flat(0, 0.1, 1), DELTA, accountant="rdp") == math.inf
    assert delta(flat(0, 0.1, 1), 3.0) == 1.0
    assert epsilon([], DELTA) == 0
    assert coalesce(flat(1, 0.1, 0)) == ()

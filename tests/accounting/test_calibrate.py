"""Calibration meets its budget from the safe side, closely, and says what cannot be met."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from quietgrad.accounting import (
    Event,
    GaussianEvent,
    JointEvent,
    Phase,
    calibrate,
    epsilon,
    plan,
    rate_within,
    steps_within,
)
from quietgrad.accounting.planning import Steps
from quietgrad.methods.gip import MallowsSelection
from tests.accounting.settings import DELTA


@dataclass(frozen=True)
class Batches:
    rate: float = 1 / 60
    steps: int = 3000


@dataclass(frozen=True)
class Scheduled:
    """Noise that changes at a step, and perhaps a selection."""

    noise: float = 1.0
    change_at: int = 10**9
    factor: float = 1.0
    selections: tuple[MallowsSelection, ...] = ()

    def event(self, step: int) -> Event:
        gaussian = GaussianEvent(
            noise_multiplier=self.noise * (self.factor if step >= self.change_at else 1.0)
        )
        return JointEvent(gaussian=gaussian, selections=self.selections) if self.selections else gaussian

    def with_noise(self, noise_multiplier: float) -> Scheduled:
        return replace(self, noise=noise_multiplier)

    def before(self, batches: Steps) -> tuple[Phase, ...]:
        return ()

    def for_budget(self, batches: Steps, *, epsilon: float, delta: float) -> Scheduled:
        return self


@pytest.mark.parametrize(
    ("target", "noise"), [(2.0, 1.9765), (5.0, 1.0710), (8.0, 0.8511), (0.1, 28.107), (40.0, 0.4872)]
)
def test_flat_calibration(target: float, noise: float) -> None:
    found = calibrate(Scheduled(), Batches(), epsilon=target, delta=DELTA)
    assert found.noise == pytest.approx(noise, rel=2e-3)
    reached = epsilon(plan(found, 1 / 60, 3000), DELTA)
    assert target * (1 - 1e-4) < reached <= target


def test_calibration_of_a_schedule_and_of_a_joint_mechanism() -> None:
    selection = MallowsSelection(theta=0.001, group_size=64, kept=6, groups=200)
    for mechanism in (Scheduled(change_at=100, factor=0.8), Scheduled(selections=(selection,))):
        found = calibrate(mechanism, Batches(0.02, 400), epsilon=1.0, delta=DELTA)
        reached = epsilon(plan(found, 0.02, 400), DELTA)
        assert 1 - 2e-4 < reached <= 1.0


def test_a_budget_that_no_noise_can_meet_says_so() -> None:
    dear = MallowsSelection(theta=1.0, group_size=64, kept=6, groups=200)
    with pytest.raises(ValueError, match=r"epsilon.*0\.5.*still costs.*theta"):
        calibrate(Scheduled(selections=(dear,)), Batches(0.1, 50), epsilon=0.5, delta=DELTA)


@pytest.mark.parametrize("target", [0.0, -1.0, float("inf"), float("nan")])
def test_a_meaningless_target_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        calibrate(Scheduled(), Batches(), epsilon=target, delta=DELTA)


def test_the_plan_counts_equal_neighbours_together() -> None:
    mechanism = Scheduled(change_at=900, factor=0.5)
    assert plan(mechanism, 0.1, 1000) == (
        Phase(event=GaussianEvent(noise_multiplier=1.0), rate=0.1, count=900),
        Phase(event=GaussianEvent(noise_multiplier=0.5), rate=0.1, count=100),
    )


def test_steps_for_a_budget() -> None:
    mechanism = Scheduled(noise=1.9765, change_at=1000, factor=0.9)
    steps = steps_within(mechanism, 1 / 60, epsilon=2.0, delta=DELTA)
    assert epsilon(plan(mechanism, 1 / 60, steps), DELTA, accountant="pld") <= 2.0
    assert epsilon(plan(mechanism, 1 / 60, steps + 1), DELTA, accountant="pld") > 2.0
    with pytest.raises(ValueError, match="one step costs"):
        steps_within(Scheduled(noise=0.1), 1.0, epsilon=0.1, delta=DELTA)
    with pytest.raises(ValueError, match="one step costs inf"):
        steps_within(Scheduled(noise=0.0), 1.0, epsilon=0.1, delta=DELTA)
    assert steps_within(Scheduled(noise=1e4), 0.01, epsilon=1.0, delta=DELTA, most=500) == 500


def test_rate_for_a_budget() -> None:
    rate = rate_within(Scheduled(noise=1.9765), 3000, epsilon=2.0, delta=DELTA)
    assert rate == pytest.approx(1 / 60, rel=1e-3)
    assert epsilon(plan(Scheduled(noise=1.9765), rate, 3000), DELTA) <= 2.0
    assert rate_within(Scheduled(noise=1e4), 10, epsilon=2.0, delta=DELTA) == 1.0

"""Schedules give the values of their equations, and refuse what makes no sense."""

from __future__ import annotations

import pytest

import quietgrad as qg
from quietgrad.accounting import GaussianEvent
from quietgrad.accounting.planning import plan
from quietgrad.rules import PER_COORDINATE, clip_for_momentum, preconditioner_damping
from quietgrad.schedules import (
    Complement,
    Cooling,
    Exponential,
    Linear,
    PerEpoch,
    Piecewise,
    Schedule,
    check_fits,
    value_at,
)


def values(schedule: Schedule, count: int) -> list[float]:
    return [schedule.at(t) for t in range(count)]


def test_cooling_is_the_papers_equation() -> None:
    assert values(Cooling(0.9, epochs=4), 6) == pytest.approx([0.0, 0.3, 0.6, 0.9, 0.9, 0.9])
    assert values(Cooling(0.9, epochs=1), 2) == [0.9, 0.9]


def test_linear_and_exponential_reach_their_end_and_stay() -> None:
    assert values(Linear(1.0, 0.2, length=4), 6) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    assert values(Exponential(1.0, 0.25, length=2), 4) == pytest.approx([1.0, 0.5, 0.25, 0.25])


def test_piecewise_changes_at_its_boundaries() -> None:
    assert values(Piecewise((1.0, 0.5, 0.1), (2, 4)), 6) == [1.0, 1.0, 0.5, 0.5, 0.1, 0.1]


def test_per_epoch_counts_epochs_of_a_rate() -> None:
    schedule = PerEpoch(Linear(4.0, 0.0, length=4), rate=0.3)
    assert values(schedule, 8) == [4.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 2.0]
    assert [schedule.at(schedule.constant_from - 1), schedule.at(schedule.constant_from)] == [1.0, 0.0]


@pytest.mark.parametrize(
    "schedule",
    [
        Linear(1.0, 0.0, 5),
        Exponential(2.0, 1.0, 3),
        Cooling(0.5, 6),
        Cooling(0.5, 1),
        Piecewise((1, 2), (7,)),
        Complement(Linear(1.0, 0.0, 5)),
        PerEpoch(Cooling(0.5, 3), 0.25),
    ],
)
def test_constant_from_is_the_first_step_of_the_last_value(schedule: Schedule) -> None:
    last = schedule.at(10_000)
    assert schedule.at(schedule.constant_from) == last
    assert schedule.constant_from == 0 or schedule.at(schedule.constant_from - 1) != last


def test_complement_turns_what_is_kept_into_what_is_frozen() -> None:
    assert values(Complement(Linear(1.0, 0.1, length=3)), 4) == pytest.approx([0.0, 0.3, 0.6, 0.9])


def test_a_number_is_a_schedule_that_never_changes() -> None:
    assert value_at(0.3, 7) == 0.3
    assert value_at(Cooling(0.4, 2), 7) == 0.4


def test_a_noise_schedule_enters_the_ledger_as_phases() -> None:
    noise = qg.Gaussian(factor=PerEpoch(Piecewise((1.0, 1.5), (2,)), rate=0.25))
    mechanism = qg.Mechanism(
        name="x", releases=qg.methods.dp_sgd().releases, noise=noise, noise_multiplier=2.0
    )
    phases = plan(mechanism, 0.25, 12)
    assert [(phase.event, phase.count) for phase in phases] == [
        (GaussianEvent(noise_multiplier=2.0), 8),
        (GaussianEvent(noise_multiplier=3.0), 4),
    ]


def test_a_clip_schedule_moves_sensitivity_and_noise_together() -> None:
    mechanism = qg.methods.dp_sgd(clip=Linear(2.0, 1.0, length=10)).with_noise(3.0)
    release = mechanism.releases[0]
    for step in (0, 5, 20):
        assert mechanism.std(release, step) == 3.0 * release.clip.sensitivity(step)
    assert release.clip.sensitivity(5) == 1.5


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Linear(1.0, 0.0, 0), "length"),
        (lambda: Exponential(1.0, 0.0, 3), "end"),
        (lambda: Cooling(0.5, 0), "epochs"),
        (lambda: Piecewise((1.0, 2.0), (3, 5)), "one value more"),
        (lambda: Piecewise((1.0, 2.0, 3.0), (5, 3)), "rising"),
        (lambda: PerEpoch(Cooling(0.5, 2), 0.0), "rate"),
    ],
)
def test_bad_schedules_are_refused_by_name(make, named: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=named):
        make()


def test_a_ramp_longer_than_training_is_refused_and_a_fitting_one_is_not() -> None:
    check_fits("freeze", Cooling(0.9, epochs=3), steps=9, rate=0.25)
    with pytest.raises(ValueError, match="training ends with epoch 1"):
        check_fits("freeze", Cooling(0.9, epochs=3), steps=8, rate=0.25)


def test_clip_for_momentum_keeps_the_papers_ratio() -> None:
    assert clip_for_momentum(0.1, 0.9) == pytest.approx(1.0)
    clip = clip_for_momentum(0.3, 0.5, new_momentum=0.8)
    assert clip / (1 - 0.8) == pytest.approx(0.3 / (1 - 0.5))
    with pytest.raises(ValueError, match="momentum"):
        clip_for_momentum(0.1, 1.0)
    with pytest.raises(ValueError, match="clip"):
        clip_for_momentum(0.0, 0.9)


def test_the_name_of_0_2_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="constant_from"):
        assert qg.schedules.Linear(2.0, 0.5, 100).settled == 100
    with pytest.warns(DeprecationWarning, match="constant_from"):

        class Written(qg.schedules.Schedule):
            def at(self, step: int) -> float:
                return float(min(step, 7))

            @property
            def settled(self) -> int:
                return 7

    assert Written().constant_from == 7  # type: ignore[abstract]


def test_damping_grows_with_what_the_noise_of_a_run_grows_with() -> None:
    assert preconditioner_damping(26_000, 3e-4) == 1.0
    assert preconditioner_damping(26_000, 0.0) == 1.0
    once = preconditioner_damping(469_000, 4e-4)
    assert once == pytest.approx((469_000 * 4e-4 / PER_COORDINATE) ** 2)
    for twice in ((938_000, 4e-4), (469_000, 8e-4)):
        assert preconditioner_damping(*twice) == pytest.approx(4 * once)
    for wrong in ((0, 1.0), (1, -1.0), (1, float("nan"))):
        with pytest.raises(ValueError, match="Expected"):
            preconditioner_damping(*wrong)

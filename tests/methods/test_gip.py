"""GIP: what it costs, that it chooses no better than chance at the paper's budget, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import quietgrad as qg
from quietgrad._collective import SingleProcess
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import ClippedSum
from quietgrad._noise.base import NoiseDraw, NoiseState
from quietgrad._noise.sources import HardenedSource, SeededSource
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import Event, JointEvent, Phase
from quietgrad.accounting.planning import plan
from quietgrad.methods.gip import MallowsSelection
from quietgrad.methods.gip.noise import SelectedGaussian
from quietgrad.schedules import Exponential, Linear, Piecewise
from tests.cases.world import privatizer, run
from tests.methods.mallows import equation_11

PLAN = SimpleNamespace(rate=0.025, steps=480)
BUDGET = {"epsilon": 0.8, "delta": 1e-5}


def noise_of(mechanism: qg.Mechanism) -> SelectedGaussian:
    assert isinstance(mechanism.noise, SelectedGaussian)
    return mechanism.noise


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_the_selections_alone_cost_their_share(share: float) -> None:
    theta = noise_of(
        qg.methods.gip(25_600, PLAN, keep=0.1, index_share=share).for_budget(PLAN, **BUDGET)
    ).theta
    assert theta is not None
    event = MallowsSelection(theta=theta, group_size=256, kept=26, groups=100)
    spent = epsilon_of((Phase(event=event, rate=PLAN.rate, count=PLAN.steps),), BUDGET["delta"])
    assert 0.985 * share * 0.8 <= spent <= share * 0.8


def test_at_the_papers_budget_the_choice_is_no_better_than_chance() -> None:
    theta = noise_of(qg.methods.gip(26_010, PLAN, keep=0.1).for_budget(PLAN, **BUDGET)).theta
    assert theta is not None
    expected = 26 - float(np.arange(27) @ equation_11(256, 26, theta))
    by_chance = 26 * 26 / 256
    assert expected / by_chance < 1.002


def test_calibration_meets_the_whole_budget_jointly() -> None:
    mechanism = qg.calibrate(qg.methods.gip(26_010, PLAN, keep=0.1), PLAN, **BUDGET)
    assert 0.999 * 0.8 <= epsilon_of(plan(mechanism, PLAN.rate, PLAN.steps), BUDGET["delta"]) <= 0.8


def selections(event: Event) -> tuple[MallowsSelection, ...]:
    assert isinstance(event, JointEvent)
    return tuple(part for part in event.selections if isinstance(part, MallowsSelection))


def test_a_ratio_schedule_over_epochs_makes_phases_of_the_ledger() -> None:
    mechanism = qg.methods.gip(2_560, PLAN, keep=Piecewise((1.0, 0.5), (4,)), theta=0.1).with_noise(2.0)
    phases = plan(mechanism, PLAN.rate, PLAN.steps)
    kept = [(selection.kept, phase.count) for phase in phases for selection in selections(phase.event)]
    assert kept == [(256, 160), (128, 320)]


def test_the_released_part_follows_the_schedule() -> None:
    short = SimpleNamespace(rate=0.25, steps=8)
    mechanism = qg.methods.gip(371, short, theta=0.1, keep=Piecewise((1.0, 0.25), (1,)), group_size=371)
    with privatizer(mechanism.with_noise(1.0), [[0, 1]] * 8) as (private, batches, model):
        grads = run(private, batches, model)
    counts = [sum(int((block != 0).sum()) for block in grad.values()) for grad in grads]
    assert counts == [371] * 4 + [93] * 4


def test_noise_set_by_hand_without_a_theta_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="pass theta"):
        qg.methods.gip(1000, PLAN).with_noise(1.0).event(0)


def test_a_theta_that_is_set_survives_calibration_and_is_paid_for() -> None:
    mechanism = qg.calibrate(qg.methods.gip(2_560, PLAN, theta=1e-3), PLAN, **BUDGET)
    assert noise_of(mechanism).theta == 1e-3
    assert epsilon_of(plan(mechanism, PLAN.rate, PLAN.steps), BUDGET["delta"]) <= 0.8


def test_no_budget_for_indices_is_random_k() -> None:
    assert noise_of(qg.methods.gip(1000, PLAN, index_share=0.0).for_budget(PLAN, **BUDGET)).theta == 0.0


@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_an_index_budget_above_the_whole_budget_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="index_share"):
        qg.methods.gip(1000, PLAN, index_share=share)


@pytest.mark.parametrize("keep", [0.0, -0.2, 1.1, Linear(1.0, 0.0, 5)])
def test_ratios_outside_their_range_are_refused(keep) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="keep in \\(0, 1\\]"):
        qg.methods.gip(1000, PLAN, keep=keep)
    with pytest.raises(ValueError, match="freeze rate"):
        qg.methods.random_k(keep=keep)


def test_a_ratio_schedule_longer_than_training_is_refused() -> None:
    with pytest.raises(ValueError, match="training ends with epoch 11"):
        qg.methods.gip(1000, PLAN, keep=Exponential(1.0, 0.1, 12))


def test_another_model_than_it_was_made_for_is_refused_before_anything_is_counted() -> None:
    mechanism = qg.methods.gip(100, PLAN, theta=0.0).with_noise(1.0)
    with privatizer(mechanism, [[0]]) as (private, batches, model):
        with pytest.raises(ValueError, match="made for 100 coordinates, but 371"):
            run(private, batches, model)
        assert private.ledger.count == 0


def test_the_hardened_source_is_refused_by_name() -> None:
    mechanism = qg.methods.gip(371, PLAN, theta=0.0).with_noise(1.0)
    with (
        privatizer(mechanism, [[0]], source=HardenedSource()) as (private, batches, model),
        pytest.raises(ValueError, match="hardened"),
    ):
        run(private, batches, model)


def test_several_ranks_choose_and_draw_once_from_the_sum_over_all() -> None:
    """Were the choice or the noise made per rank, two half sums would give two choices and too much noise."""

    class Summing(SingleProcess):
        world = 2

        def reduce_to_rank0(self, blocks: Blocks, release: Callable[[Blocks], Blocks]) -> Blocks:
            return release({name: 2 * block for name, block in blocks.items()})

    mechanism = qg.methods.gip(371, PLAN, theta=0.0, keep=0.2, group_size=371)
    total = ClippedSum(blocks={"w": torch.arange(371.0)}, sensitivity=1.0)
    draw = NoiseDraw(std=1e-4, divisor=1.0, source=SeededSource(0), reducer=Summing(), step=0)
    released = mechanism.noise.release(total, draw, NoiseState())[0].blocks["w"]
    chosen = released != 0
    assert int(chosen.sum()) == 74
    assert torch.allclose(released[chosen], 2 * torch.arange(371.0)[chosen], atol=1e-3)


def test_the_model_itself_counts_its_trainable_coordinates() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.Linear(10, 3))
    model[0].requires_grad_(False)
    assert noise_of(qg.methods.gip(model, PLAN, theta=0.0)).grouping.coordinates == 33

"""A sampler with another participation pattern: cyclic Poisson, through calibration, Privatizer and ledger.

The records are in b groups, fixed once and whatever they hold. Step t draws from group t mod b with probability b·q. A
record is in one group, so T steps cost it ⌈T/b⌉ Poisson draws of rate b·q.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import optimize, special

import quietgrad as qg
from quietgrad._sampling.coins import heads
from quietgrad.accounting import Charge, Event, GaussianEvent, Ledger, Phase, epsilon, plan
from quietgrad.accounting.planning import Bill, bill, whole_plan
from tests.accounting.settings import DELTA
from tests.cases.world import losses_of, records, small_net

EVENT, OTHER = (GaussianEvent(noise_multiplier=noise) for noise in (1.1, 0.9))


class CyclicPoissonSampler(qg.PoissonSampler):
    """Draws from one group of records after the other."""

    def __init__(self, records: int, *, rate: float, steps: int, groups: int) -> None:
        super().__init__(records, rate=rate, steps=steps)
        self.groups = groups

    def charge(self, event: Event, step: int) -> Charge:
        return Charge(event=event, rate=self.groups * self.rate, group=step % self.groups)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "groups": self.groups}

    def draw(self) -> list[int]:
        group = self._made.next % self.groups
        drawn = heads(self.units, self.groups * self.rate, self._words()).tolist()
        self._draws_made += 1
        return [record for record in drawn if record % self.groups == group]


def cyclic(*, rate: float = 0.25, steps: int = 10, groups: int = 3) -> qg.PoissonBatches:
    train_set = records()
    batches = qg.PoissonBatches(train_set, rate=rate, steps=steps)
    batches.sampler = CyclicPoissonSampler(len(train_set), rate=rate, steps=steps, groups=groups)
    return batches


def test_a_step_draws_from_its_group_alone() -> None:
    draws = list(cyclic(rate=0.3).sampler)
    assert sum(map(len, draws)) > 10
    assert all(record % 3 == step % 3 for step, draw in enumerate(draws) for record in draw)


def gaussian_delta(eps: float, mean: float) -> float:
    """δ(ε) of N(0, 1) against N(μ, 1): Balle and Wang 2018."""
    below = special.log_ndtr(-eps / mean - mean / 2) + eps
    return float(special.ndtr(-eps / mean + mean / 2) - math.exp(below))


def test_the_plan_is_that_of_one_group() -> None:
    mechanism = qg.methods.dp_sgd().with_noise(1.1)
    assert plan(mechanism, cyclic()) == (Phase(event=EVENT, rate=0.75, count=4),)
    assert plan(mechanism, cyclic(groups=1)) == plan(mechanism, 0.25, 10)
    assert plan(mechanism, cyclic(groups=1)) == plan(mechanism, rate=0.25, steps=10)
    with pytest.raises(ValueError, match="Expected batches, or a rate and steps"):
        plan(mechanism, 0.25)  # type: ignore[call-overload]


def test_calibration_meets_the_closed_form() -> None:
    batches = cyclic(
        rate=1 / 3, steps=10, groups=3
    )  # each group whole, four times: one Gaussian of mean √4/σ
    found = qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=2.0, delta=DELTA)
    mean = optimize.brentq(lambda mean: gaussian_delta(2.0, mean) - DELTA, 0.01, 10.0)
    assert found.noise_multiplier == pytest.approx(2 / mean, rel=1e-3)
    assert epsilon(plan(found, batches), DELTA) <= 2.0
    plain = qg.PoissonBatches(records(), rate=1 / 3, steps=10)
    poisson = qg.calibrate(qg.methods.dp_sgd(), plain, epsilon=2.0, delta=DELTA)
    assert poisson.noise_multiplier != pytest.approx(found.noise_multiplier, rel=0.05)


def test_calibration_of_a_schedule_asks_the_sampler_at_the_right_steps() -> None:
    noise = qg.Gaussian(factor=qg.schedules.Piecewise((1.0, 2.0), (6,)))
    mechanism = qg.Mechanism(name="two", releases=qg.methods.dp_sgd().releases, noise=noise)
    found = qg.calibrate(mechanism, cyclic(), epsilon=2.0, delta=DELTA)
    phases = plan(found, cyclic())
    assert [(phase.rate, phase.count) for phase in phases] == [(0.75, 2), (0.75, 2)]
    assert 2.0 * (1 - 2e-4) < epsilon(phases, DELTA) <= 2.0


def train(private: qg.Privatizer, batches: qg.PoissonBatches, model: torch.nn.Module, steps: int) -> None:
    for _, batch in zip(range(steps), batches, strict=False):
        for x, y in batch.split(8):
            private.backward(losses_of(model, x, y))
        private.release()


def test_a_run_ends_with_the_ledger_of_its_plan(tmp_path: Path) -> None:
    batches, model = cyclic(), small_net()
    mechanism = qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=5.0, delta=1e-3)
    with qg.Privatizer(model, mechanism, batches, ledger=tmp_path / "ledger.jsonl") as private:
        assert private.steps_left == 10
        train(private, batches, model, 4)
        assert [phase.count for phase in private.ledger.phases] == [2]
        assert private.steps_left == 6
        train(private, batches, model, 6)
        assert private.steps_left == 0
        assert private.ledger.phases == private.plan == plan(mechanism, batches)
        assert private.epsilon(1e-3, spent=True) == private.epsilon(1e-3) <= 5.0
    assert Ledger.read(tmp_path / "ledger.jsonl").phases == plan(mechanism, batches)


def test_a_resumed_run_counts_replayed_steps_of_a_group_and_other_groups_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "ledger.jsonl", small_net()
    mechanism = qg.methods.dp_sgd().with_noise(1.1)
    batches = cyclic(steps=6)  # two steps of each of three groups
    with qg.Privatizer(model, mechanism, batches, ledger=path) as private:
        train(private, batches, model, 2)
        saved = private.state_dict()
        train(private, batches, model, 1)  # lost: the crash comes after this release of group 2
    batches = cyclic(steps=6)
    with qg.Privatizer(model, mechanism, batches, ledger=path) as private:
        private.load_state_dict(saved)
        train(private, batches, model, 3)  # groups 2, 0 and 1
        assert [phase.count for phase in private.ledger.phases] == [2]
        with pytest.raises(qg.PrivacyError, match="used up"):
            train(private, batches, model, 1)  # group 2 for a third time
        assert private.ledger.phases == private.plan
    with pytest.raises(qg.PrivacyError, match="of the same run"):
        qg.Privatizer(model, mechanism, cyclic(steps=6, groups=2), ledger=path)


def test_no_record_is_charged_more_than_the_bill_says() -> None:
    generator = random.Random(0)
    for _ in range(50):
        total, truth = Bill(), [Counter[tuple[Event, float]]() for _ in range(3)]
        for _ in range(40):
            event, rate = generator.choice((EVENT, OTHER)), generator.choice((0.1, 1.0))
            group = generator.choice((None, 0, 1, 2))
            total.add(Charge(event=event, rate=rate, group=group))
            for index, own in enumerate(truth):
                own[event, rate] += group in (None, index)
            billed = Counter[tuple[Event, float]]()
            for phase in total.phases:
                billed[phase.event, phase.rate] += phase.count
            assert all(billed[key] >= own[key] for own in truth for key in own)
        assert total.charges == 40


def test_groups_of_other_partitions_share_nothing() -> None:
    """Two runs on one ledger, each with groups of its own: a record may be in group 0 of both, or in 0 and 5."""
    total = Bill()
    for group, partition in ((0, "40 in 4"), (5, "40 in 8"), (1, "39 in 4")):
        total.add(Charge(event=EVENT, rate=0.5, group=group, partition=partition))
    assert total.phases == (Phase(event=EVENT, rate=0.5, count=3),)
    ledger, mechanism = Ledger(), qg.methods.dp_sgd().with_noise(1.1)
    for groups, rate, steps in ((4, 0.125, 1), (8, 0.0625, 2)):
        batches = qg.PoissonBatches(records(), rate=rate, steps=steps, groups=groups)
        model = small_net()
        with qg.Privatizer(model, mechanism, batches, ledger=ledger) as private:
            train(private, batches, model, steps)
    assert sum(phase.count for phase in ledger.phases) == 2
    assert [phase.rate for phase in ledger.phases] == [0.5] * len(ledger.phases)


def test_without_groups_a_bill_is_the_list_of_steps() -> None:
    total = Bill()
    for event in (EVENT, EVENT, OTHER, EVENT):
        total.add(Charge(event=event, rate=0.1))
    assert [(phase.event, phase.count) for phase in total.phases] == [(EVENT, 2), (OTHER, 1), (EVENT, 1)]
    assert total.firsts == (0, 2, 3)
    assert bill(qg.methods.dp_sgd().with_noise(1.1), cyclic()).firsts == (0,)


def test_replaying_one_step_for_ever_counts_each_time(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", plan=[Phase(event=EVENT, rate=0.75, count=4)])
    for _ in range(4):
        ledger.record(EVENT, 0.75, step=2, group=2)
    assert ledger.phases == ledger.plan
    with pytest.raises(qg.PrivacyError, match="used up"):
        ledger.record(EVENT, 0.75, step=2, group=2)
    ledger.record(EVENT, 0.75, step=0, group=0)
    with pytest.raises(qg.PrivacyError, match="does not hold"):
        ledger.record(OTHER, 0.75, step=1, group=1)
    ledger.close()
    assert Ledger.read(tmp_path / "ledger.jsonl").phases == ledger.phases


def test_a_torn_line_counts_for_all_groups(tmp_path: Path) -> None:
    path, planned = tmp_path / "ledger.jsonl", [Phase(event=EVENT, rate=0.75, count=4)]
    ledger = Ledger(path, plan=planned)
    for step in range(3):
        ledger.record(EVENT, 0.75, step=step, group=step)
    ledger.close()
    path.write_bytes(path.read_bytes()[:-9])
    ledger = Ledger(path, plan=planned)
    assert [phase.count for phase in ledger.phases] == [2]
    for _ in range(2):
        ledger.record(EVENT, 0.75, step=3, group=0)
    with pytest.raises(qg.PrivacyError, match="used up"):
        ledger.record(EVENT, 0.75, step=3, group=0)
    ledger.close()


def test_statistics_of_all_records_come_on_top() -> None:
    release = qg.StatisticRelease(statistic=qg.Mean(), share=0.1)
    program = qg.Program(training=qg.methods.dp_sgd(), statistics={"mean": release})
    batches = cyclic()
    program = qg.calibrate(program, batches, epsilon=2.0, delta=DELTA)
    phases = whole_plan(program, batches)
    assert [(phase.rate, phase.count) for phase in phases] == [(1.0, 1), (0.75, 4)]
    assert epsilon(phases, DELTA) <= 2.0

"""Draws that are cut at B records, and records that take part once an epoch: laws, plans, resume, and odd options."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._noise.aes import RandomWords
from quietgrad._privatizer.research import Observer
from quietgrad._sampling.participation import TruncatedPoisson
from quietgrad.accounting import AllocationEvent, GaussianEvent, Phase, TruncatedEvent, plan
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import RECORDS, USERS, losses_of, privatizer, records, run, small_net
from tests.laws.test_law3_neighbours import CountingSource

GAUSSIAN = GaussianEvent(noise_multiplier=1.2)
MECHANISM = qg.methods.dp_sgd(clip=0.5).with_noise(1.2)


class Precisions(Observer):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.seen.append(sum(part.precision for part in released))


# ---- at most B rows ----------------------------------------------------------------------------------------


def test_every_batch_has_the_same_rows_and_the_first_count() -> None:
    sampler = qg.PoissonSampler(40, rate=0.25, steps=200, at_most=12)
    seen = []
    for step, rows in enumerate(sampler):
        used = sampler.used(step)
        assert len(rows) == 12
        assert used is not None
        assert rows[:used] == sorted(set(rows[:used]))
        seen.append(used)
    assert max(seen) == 12
    assert min(seen) < 12


def test_who_is_left_out_is_fair_and_who_is_drawn_unchanged() -> None:
    scheme, often, count = TruncatedPoisson(20, 0.5, 10), np.zeros(20), 6_000
    for _ in range(count):
        often[scheme.draw(0, RandomWords())] += 1
    # P(used) of each: E[min(drawn, 10)]/20.
    sizes = np.arange(21)
    chance = float(np.minimum(sizes, 10) @ stats.binom.pmf(sizes, 20, 0.5)) / 20
    spread = math.sqrt(chance * (1 - chance) / count)
    assert np.abs(often / count - chance).max() < 6 * spread


@pytest.mark.parametrize("case", BY_FAMILY)
def test_rows_that_fill_a_batch_up_add_nothing(case: MethodCase) -> None:
    """The same draws, noise and public seed with and without padding: the same releases."""
    draws = [[3, 8, 20], [], [1, 5, 6, 7, 30]]
    mechanism = case.build(0.5).with_noise(1.0)
    releases = []
    for options in ({}, {"at_most": 12}):
        with privatizer(mechanism, draws, users=options) as (private, batches, model):
            releases.append(run(private, batches, model, micro=4, lr=0.1))
    for plain, padded in zip(*releases, strict=True):
        for name in plain:
            assert torch.allclose(plain[name], padded[name], atol=2e-6), name


def test_a_record_that_is_not_a_number_may_fill_a_batch_up() -> None:
    data = records()
    data.tensors[0][:3] = float("nan")
    releases = []
    for options in ({}, {"at_most": 12}):
        with privatizer(MECHANISM, [[5, 6]], data=data, users=options) as (private, batches, model):
            releases.append(run(private, batches, model)[0])
    assert all(torch.allclose(releases[0][name], releases[1][name], atol=1e-6) for name in releases[0])


def test_laws_0_and_3_of_cut_draws() -> None:
    """Ledger, noise and shapes are the same for neighbouring draws; how often the loop is asked is left to chance."""
    seen = []
    for draw in ([[5, 8, 9], [5]], [[8, 9], []]):
        source, precisions = CountingSource(), Precisions()
        world = privatizer(MECHANISM, draw, users={"at_most": 10}, source=source, research=True)
        with world as (private, batches, model):
            private.watch(precisions)
            shapes = []
            for batch in batches:
                for x, y in batch.split(5):
                    shapes.append(len(x))
                    private.backward(losses_of(model, x, y))
                private.release()
            seen.append((source.asked, private.ledger.phases, precisions.seen, set(shapes)))
    assert seen[0] == seen[1]
    assert seen[0][2] == pytest.approx([1.2**-2] * 2, rel=1e-9)
    assert seen[0][3] <= {10, 5, 3, 2}
    event = TruncatedEvent(event=GAUSSIAN, units=RECORDS, at_most=10)
    assert seen[0][1] == (Phase(event=event, rate=0.25, count=2),)


def test_law_2_of_cut_draws() -> None:
    """With a null record in its place, the sum moves by the clip at most: nobody takes its place in the draw."""
    data, null = records(), records()
    data.tensors[0][5] *= 1e6
    null.tensors[0][5] = float("nan")  # contributes exactly nothing
    mechanism = qg.methods.dp_sgd(clip=0.5).with_noise(0.0)
    found = []
    for one in (data, null):
        with privatizer(mechanism, [[5, 8, 9, 11]], data=one, users={"at_most": 10}) as (
            private,
            batches,
            model,
        ):
            found.append(run(private, batches, model)[0])
    moved = math.sqrt(sum(float((found[0][n] - found[1][n]).double().square().sum()) for n in found[0])) * 10
    assert 0.45 < moved <= 0.5


def test_calibration_pays_for_cutting() -> None:
    noise = []
    for options in ({}, {"at_most": 10}, {"at_most": 14}):
        batches = qg.PoissonBatches(records(), rate=0.25, steps=20, **options)  # type: ignore[arg-type]
        noise.append(
            qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=4.0, delta=1e-3).noise_multiplier or 0.0
        )
    assert noise[1] > noise[2] > noise[0]


# ---- once an epoch -----------------------------------------------------------------------------------------


def test_each_record_takes_part_once_in_every_block() -> None:
    sampler = qg.PoissonSampler(40, rate=0.2, steps=15, once_an_epoch=True)
    draws = list(sampler)
    for first in (0, 5, 10):
        assert sorted(row for draw in draws[first : first + 5] for row in draw) == list(range(40))
    assert draws[:5] != draws[5:10]


def test_places_are_uniform_and_independent() -> None:
    sampler = qg.PoissonSampler(3_000, rate=0.25, steps=4, once_an_epoch=True)
    places = np.zeros(3_000, dtype=int)
    for step, draw in enumerate(sampler):
        places[draw] = step
    counts = np.bincount(places, minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-6
    pairs = np.bincount(4 * places[::2] + places[1::2], minlength=16)
    assert stats.chisquare(pairs).pvalue > 1e-6


def test_users_take_part_once_an_epoch_as_a_whole() -> None:
    sampler = qg.PoissonSampler(40, rate=0.5, steps=2, once_an_epoch=True, **USERS)
    drawn = [{USERS["unit"][row] for row in draw} for draw in sampler]
    assert drawn[0] | drawn[1] == set(range(10))
    assert not drawn[0] & drawn[1]


@pytest.mark.parametrize(("steps", "count"), [(5, 1), (4, 1), (6, 2), (15, 3)])
def test_the_plan_counts_blocks(steps: int, count: int) -> None:
    batches = qg.PoissonBatches(records(), rate=0.2, steps=steps, once_an_epoch=True)
    event = AllocationEvent(noise_multiplier=1.2, steps=5)
    assert plan(MECHANISM, batches) == (Phase(event=event, rate=1.0, count=count),)


def batches_of(steps: int) -> qg.PoissonBatches:
    return qg.PoissonBatches(records(), rate=0.2, steps=steps, once_an_epoch=True)


def steps_of(private: qg.Privatizer, batches: qg.PoissonBatches, model: Any, count: int) -> None:
    for _, batch in zip(range(count), batches, strict=False):
        for x, y in batch.split(8):
            private.backward(losses_of(model, x, y))
        private.release()


def test_laws_0_and_8_of_an_epoch(tmp_path: Path) -> None:
    """A block that a crash cut short is paid for as a whole, and so is the one that begins after it."""
    model, ledger = small_net(), tmp_path / "ledger.jsonl"
    batches = batches_of(15)
    with qg.Privatizer(model, MECHANISM, batches, ledger=ledger) as private:
        assert private.steps_left == 15
        steps_of(private, batches, model, 6)
        assert [phase.count for phase in private.ledger.phases] == [2]
        assert private.steps_left == 9
        saved = private.state_dict()
    batches = batches_of(15)
    with qg.Privatizer(model, MECHANISM, batches, ledger=ledger) as private:
        private.load_state_dict(saved)
        assert (private.steps_left, private.steps_made) == (5, 6)  # one block is left of three
        steps_of(private, batches, model, 1)
        assert [phase.count for phase in private.ledger.phases] == [3]
        steps_of(private, batches, model, 4)
        assert private.steps_left == 0
        assert private.epsilon(1e-3, spent=True) == private.epsilon(1e-3)
        with pytest.raises(qg.PrivacyError, match="plan"):
            steps_of(private, batches, model, 1)
    read = qg.Ledger.read(ledger)
    assert [phase.count for phase in read.phases] == [3]


def test_a_resumed_run_draws_a_new_allocation() -> None:
    sampler = qg.PoissonSampler(400, rate=0.25, steps=12, once_an_epoch=True)
    first = next(iter(sampler))
    sampler.skip_to(2)
    again = [draw for _, draw in zip(range(4), sampler, strict=False)]
    assert sorted(row for draw in again for row in draw) == list(range(400))
    assert first not in again


@pytest.mark.parametrize("noise", [qg.Gaussian(factor=qg.schedules.Linear(1.0, 2.0, 5))])
def test_noise_that_changes_is_refused(noise: qg.Noise) -> None:
    mechanism = replace(qg.methods.dp_sgd(), noise=noise)
    with pytest.raises(qg.PrivacyError, match="priced together"):
        qg.Privatizer(small_net(), mechanism.with_noise(1.0), batches_of(10))
    banded = replace(qg.methods.dp_sgd(), noise=qg.BandedNoise.square_root(2)).with_noise(1.0)
    with pytest.raises(qg.PrivacyError, match="Gaussian noise alone"):
        qg.Privatizer(small_net(), banded, batches_of(10))


def test_copies_share_no_allocation() -> None:
    sampler = qg.PoissonSampler(400, rate=0.25, steps=12, once_an_epoch=True)
    next(iter(sampler))
    other = copy.deepcopy(sampler)
    assert next(iter(other)) != next(iter(sampler))


# ---- options that do not fit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at_most": 9}, "at_most"),
        ({"at_most": 10.5}, "at_most"),
        ({"at_most": 12, "groups": 2}, "groups and at_most"),
        ({"at_most": 12, "once_an_epoch": True}, "at_most and once_an_epoch"),
        ({"groups": 2, "once_an_epoch": True}, "groups and once_an_epoch"),
        ({"rate": 0.3, "once_an_epoch": True}, "1/3"),
        ({"at_most": 12, **USERS}, "users"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        qg.PoissonSampler(40, **{"rate": 0.25, "steps": 4, **options})


def test_length_classes_are_refused_with_at_most() -> None:
    data = TensorDataset(torch.zeros(8, 3))
    with pytest.raises(ValueError, match="one length"):
        qg.PoissonBatches(data, rate=0.5, steps=2, at_most=6, pad_to=(2, 4))


def test_a_loader_sees_one_shape() -> None:
    data = records()
    sampler = qg.PoissonSampler(len(data), rate=0.25, steps=6, at_most=14)
    loader = DataLoader(data, batch_sampler=sampler)
    model = small_net()
    with qg.Privatizer(model, MECHANISM, sampler, require_independence=False) as private:
        shapes = set()
        for x, y in loader:
            shapes.add(len(x))
            private.backward(losses_of(model, x, y))
            private.release()
    assert shapes == {14}

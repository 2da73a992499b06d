"""One plan for statistics and training: calibrated together, in one ledger, nothing outside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._program.statistics import DiagonalMoments, KroneckerMoments, Mean, SecondMoments, Statistic
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import whole_plan
from quietgrad.audit.bounds import slope_over_noise

DELTA = 1e-5


def program(mean: float = 0.02, second: float = 0.08) -> qg.Program:
    statistics = {
        "mean": qg.StatisticRelease(statistic=Mean(), share=mean),
        "second": qg.StatisticRelease(statistic=SecondMoments(), share=second),
    }
    return qg.Program(training=qg.methods.dp_sgd(clip=0.5), statistics=statistics)


def data() -> TensorDataset:
    rng = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(50, 4, generator=rng), torch.randint(2, (50,), generator=rng))


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_the_whole_plan_meets_the_budget(rate: float) -> None:
    batches = qg.PoissonBatches(data(), rate=rate, steps=20)
    calibrated = qg.calibrate(program(), batches, epsilon=1.0, delta=DELTA)
    spent = epsilon(whole_plan(calibrated, batches), DELTA)
    assert 1.0 - 2e-3 <= spent <= 1.0
    assert epsilon(calibrated.before(batches), DELTA) < spent


def test_shares_are_parts_of_the_squared_budget_on_full_batches() -> None:
    batches = qg.PoissonBatches(data(), rate=1.0, steps=20)
    calibrated = qg.calibrate(program(), batches, epsilon=1.0, delta=DELTA)
    parts = [calibrated.multiplier(name, batches) ** -2 for name in ("mean", "second")]
    parts.append(20 * calibrated.training.multiplier(0) ** -2)
    assert [part / sum(parts) for part in parts] == pytest.approx([0.02, 0.08, 0.90])


def test_statistics_that_are_not_accounted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = qg.PoissonBatches(data(), rate=1.0, steps=20)
    calibrated = qg.calibrate(program(), batches, epsilon=1.0, delta=DELTA)
    without = whole_plan(calibrated.training, batches)  # the planted bug: a plan that forgot the moments
    monkeypatch.setattr("quietgrad._program.releasing.whole_plan", lambda *_: without)
    statistics = qg.Statistics(calibrated, batches)
    with pytest.raises(ValueError, match="which the plan does not hold"):
        statistics.release("mean", data().tensors[0])


def test_statistics_and_training_share_one_ledger(tmp_path: Path) -> None:
    records = data()
    batches = qg.PoissonBatches(records, rate=1.0, steps=3)
    calibrated = qg.calibrate(program(), batches, epsilon=1.0, delta=DELTA)
    statistics = qg.Statistics(calibrated, batches, ledger=tmp_path / "ledger.jsonl")
    statistics.release("mean", records.tensors[0])
    statistics.release("second", records.tensors[0])
    model = nn.Linear(4, 2)
    with qg.Privatizer(model, calibrated.training, batches, ledger=statistics.ledger) as private:
        assert private.steps_left == 3
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
            private.release()
        assert private.steps_left == 0
        assert private.epsilon(DELTA) == pytest.approx(1.0, abs=2e-3)
        assert private.epsilon(DELTA, spent=True) == pytest.approx(private.epsilon(DELTA))
    read = Ledger.read(tmp_path / "ledger.jsonl")
    assert (read.count, len(read.phases)) == (5, 3)


def test_a_statistic_is_released_once_and_from_all_records() -> None:
    records = data().tensors[0]
    batches = qg.PoissonBatches(data(), rate=1.0, steps=3)
    statistics = qg.Statistics(program().with_noise(3.0), batches)
    with pytest.raises(ValueError, match="Expected the 50 records of the plan, got 49"):
        statistics.release("mean", records[1:])
    statistics.release("mean", records)
    with pytest.raises(ValueError, match="released already"):
        statistics.release("mean", records)
    with pytest.raises(ValueError, match="What is not planned is not paid for"):
        statistics.release("median", records)


def test_a_restarted_program_cannot_release_again(tmp_path: Path) -> None:
    records = data().tensors[0]
    batches = qg.PoissonBatches(data(), rate=1.0, steps=3)
    first = qg.Statistics(program().with_noise(3.0), batches, ledger=tmp_path / "ledger.jsonl")
    first.release("mean", records)
    first.ledger.close()
    again = qg.Statistics(program().with_noise(3.0), batches, ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="all are used up"):
        again.release("mean", records)


@pytest.mark.parametrize("shares", [(0.0, 0.1), (0.5, 0.5), (-0.1, 0.1)])
def test_shares_must_leave_something_for_training(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="leaves a part for training"):
        program(*shares)


CANARIES = 200
STATISTICS = {
    "mean": (Mean(), (1,)),
    "second": (SecondMoments(), (1,)),
    "diagonal": (DiagonalMoments(), (1,)),
    "kronecker": (KroneckerMoments(), (1, 1)),
}


def audited(
    statistic: Statistic, shape: tuple[int, ...], *, claimed_noise: float, made: float
) -> tuple[float, float]:
    """A lower bound (99.999%) on signal over noise, from releases with and without a record, and what is claimed."""
    sampler = qg.PoissonSampler(1, rate=1.0, steps=1)
    releases = {"it": qg.StatisticRelease(statistic=statistic, share=0.5)}
    claimed = qg.Program(training=qg.methods.dp_sgd(), statistics=releases).with_noise(claimed_noise)
    present = np.arange(CANARIES) % 2.0
    scores = []
    for there in present:
        found = qg.Statistics(claimed.with_noise(made), sampler).release("it", torch.full((1, *shape), there))
        scores.append(sum(float(block.sum()) for block in found.blocks.values()) / len(found.blocks) ** 0.5)
    return slope_over_noise(present, np.array(scores), alpha=1e-5), 1 / claimed.multiplier("it", sampler)


@pytest.mark.parametrize(("statistic", "shape"), STATISTICS.values(), ids=STATISTICS.keys())
def test_the_audit_stays_below_the_claim_and_catches_missing_noise(
    statistic: Statistic, shape: tuple[int, ...]
) -> None:
    found, claimed = audited(statistic, shape, claimed_noise=0.4, made=0.4)
    assert 0.25 * claimed < found <= claimed
    found, claimed = audited(statistic, shape, claimed_noise=0.4, made=0.13)
    assert found > claimed


def joint_score(calibrated: qg.Program, claimed_noise: qg.Program, there: float) -> float:
    """The best guess at one record's presence from all that a program releases: Σ_j release_j / σ_j²."""
    records = TensorDataset(torch.full((1, 1), there), torch.zeros(1, dtype=torch.int64))
    batches = qg.PoissonBatches(records, rate=1.0, steps=3)
    statistics = qg.Statistics(calibrated, batches)
    score = 0.0
    for name in claimed_noise.statistics:
        (block,) = statistics.release(name, records.tensors[0]).blocks.values()
        score += float(block) / claimed_noise.multiplier(name, batches) ** 2
    model = nn.Linear(1, 1, bias=False)
    with qg.Privatizer(model, calibrated.training, batches, ledger=statistics.ledger) as private:
        for batch in batches:
            for x, _ in batch.split(64):
                private.backward(5.0 * model(x)[:, 0])  # a gradient beyond the clip, so as long as it may be
            private.release()
            assert model.weight.grad is not None
            score += 2.0 * float(model.weight.grad) / claimed_noise.training.multiplier(0) ** 2  # clip ½
    return score


@pytest.mark.slow
def test_the_audit_of_the_joint_plan_stays_below_the_claim_and_catches_moments_without_their_noise() -> None:
    batches = qg.PoissonSampler(1, rate=1.0, steps=3)
    sound = qg.calibrate(program(0.45, 0.45), batches, epsilon=20.0, delta=DELTA)
    parts = [sound.multiplier(name, batches) ** -2 for name in sound.statistics]
    claimed = (sum(parts) + 3 * sound.training.multiplier(0) ** -2) ** 0.5
    # The planted bug: the statistics take a share of the noise that the plan does not have, training stays as it is.
    shares = {name: replace(release, share=0.49) for name, release in sound.statistics.items()}
    broken = replace(sound, statistics=shares)
    present = np.arange(CANARIES) % 2.0
    found = [
        slope_over_noise(
            present, np.array([joint_score(made, sound, there) for there in present]), alpha=1e-5
        )
        for made in (sound, broken)
    ]
    assert 0.25 * claimed < found[0] <= claimed < found[1]

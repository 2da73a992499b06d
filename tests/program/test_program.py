"""One plan for statistics and training: calibrated together, in one ledger, nothing outside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting.calibrate import whole_plan
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.ledger import Ledger
from quietgrad.audit.bounds import slope_over_noise
from quietgrad.program.statistics import Mean, SecondMoments

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


def test_statistics_that_are_not_accounted_are_refused() -> None:
    batches = qg.PoissonBatches(data(), rate=1.0, steps=20)
    calibrated = qg.calibrate(program(), batches, epsilon=1.0, delta=DELTA)
    statistics = qg.Statistics(calibrated, batches)
    without = whole_plan(calibrated.training, batches)  # the planted bug: a plan that forgot the moments
    statistics.ledger = Ledger(None, plan=without)
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


def audited(calibrated: qg.Program, sampler: qg.PoissonSampler) -> float:
    """A lower bound (99.9%) on signal over noise of a released mean, from releases with and without a record."""
    present = np.arange(CANARIES) % 2.0
    records = [torch.full((1, 1), float(there)) for there in present]
    scores = [float(qg.Statistics(calibrated, sampler).release("mean", r).blocks["mean"]) for r in records]
    return slope_over_noise(present, np.array(scores), alpha=1e-3)


def test_the_audit_stays_below_the_claim_and_catches_missing_noise() -> None:
    sampler = qg.PoissonSampler(1, rate=1.0, steps=1)
    calibrated = qg.calibrate(program(0.3, 0.3), sampler, epsilon=4.0, delta=DELTA)
    claimed = 1 / calibrated.multiplier("mean", sampler)
    assert audited(calibrated, sampler) <= claimed
    assert audited(calibrated.with_noise(calibrated.training.multiplier(0) / 3), sampler) > claimed

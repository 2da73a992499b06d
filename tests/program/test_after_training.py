"""Statistics that are released after training: planned, paid for, in their order, once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._program.statistics import Counts
from quietgrad.accounting.evaluate import epsilon
from quietgrad.accounting.planning import whole_plan

DELTA = 1e-5
LABELS = torch.arange(40) % 3


def program(share: float = 0.1) -> tuple[qg.Program, qg.PoissonBatches]:
    batches = qg.PoissonBatches(TensorDataset(torch.randn(40, 2), LABELS % 2), rate=0.5, steps=6)
    planned = qg.Program(
        training=qg.methods.dp_sgd(clip=1.0),
        statistics={"mean": qg.StatisticRelease(statistic=qg.Mean(), share=0.1)},
        after={"counts": qg.StatisticRelease(statistic=Counts(3), share=share)},
    )
    return qg.calibrate(planned, batches, epsilon=2.0, delta=DELTA), batches


def trained(statistics: qg.Statistics, planned: qg.Program, batches: qg.PoissonBatches) -> qg.Privatizer:
    model = nn.Linear(2, 2)
    with qg.Privatizer(model, planned.training, batches, ledger=statistics.ledger) as private:
        assert private.steps_left == 6
        for batch in batches:
            for x, y in batch.split(64):
                private.backward(nn.functional.cross_entropy(model(x), y, reduction="none"))
            private.release()
        assert private.steps_left == 0
        return private


def test_the_plan_holds_them_last_and_pays_for_them() -> None:
    planned, batches = program()
    whole = whole_plan(planned, batches)
    assert [phase.count for phase in whole] == [1, 6, 1]
    assert whole[-1].event == planned.statistic_event("counts", batches)
    spent = epsilon(whole, DELTA)
    assert spent == pytest.approx(2.0, abs=1e-3)
    # The planted bug: a plan that forgets what comes after training.
    assert epsilon(whole[:-1], DELTA) < spent - 0.01
    assert planned.training_share == pytest.approx(0.8)


def test_they_are_released_once_and_after_the_last_step(tmp_path: Path) -> None:
    planned, batches = program()
    statistics = qg.Statistics(planned, batches, ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="planned after training"):
        statistics.release("counts", LABELS)
    statistics.release("mean", torch.randn(40, 2))
    with pytest.raises(ValueError, match="planned after training"):
        statistics.release("counts", LABELS)
    private = trained(statistics, planned, batches)
    assert private.epsilon(DELTA) == pytest.approx(2.0, abs=1e-3)
    assert private.epsilon(DELTA, spent=True) < 2.0 - 0.01
    released = statistics.release("counts", LABELS)
    assert released.blocks["counts"].shape == (3,)
    assert private.epsilon(DELTA, spent=True) == pytest.approx(private.epsilon(DELTA))
    with pytest.raises(qg.PrivacyError, match="released already"):
        statistics.release("counts", LABELS)
    assert qg.Ledger.read(tmp_path / "ledger.jsonl").count == 8


def test_a_torn_line_counts_as_a_step_and_not_as_what_comes_later(tmp_path: Path) -> None:
    planned, batches = program()
    path = tmp_path / "ledger.jsonl"
    statistics = qg.Statistics(planned, batches, ledger=path)
    statistics.release("mean", torch.randn(40, 2))
    statistics.ledger.close()
    with path.open("ab") as file:
        file.write(b'{"step": 0, "ev')
    again = qg.Statistics(planned, batches, ledger=path)
    private = qg.Privatizer(nn.Linear(2, 2), planned.training, batches, ledger=again.ledger)
    assert private.steps_left == 5
    private.close()
    upcoming = again.ledger.upcoming
    assert upcoming is not None
    assert (upcoming.event, upcoming.count) == (planned.event(0), 5)


def test_shares_and_names_are_checked() -> None:
    mean = qg.StatisticRelease(statistic=qg.Mean(), share=0.6)
    with pytest.raises(ValueError, match="leaves a part for training"):
        qg.Program(training=qg.methods.dp_sgd(clip=1.0), statistics={"a": mean}, after={"b": mean})
    half = qg.StatisticRelease(statistic=qg.Mean(), share=0.2)
    with pytest.raises(ValueError, match="'a' before and after"):
        qg.Program(training=qg.methods.dp_sgd(clip=1.0), statistics={"a": half}, after={"a": half})

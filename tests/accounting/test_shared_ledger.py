"""A ledger without plan that several runs share: ε is never less than what was spent."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg

DELTA, STEPS = 1e-5, 4
MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def run(ledger: qg.Ledger, steps: int = STEPS) -> qg.Privatizer:
    batches = qg.PoissonBatches(TensorDataset(torch.ones(32, 2)), rate=0.5, steps=STEPS)
    model = nn.Linear(2, 1)
    with qg.Privatizer(model, MECHANISM, batches, ledger=ledger) as private:
        for batch, _ in zip(batches, range(steps), strict=False):
            for (x,) in batch.split(32):
                private.backward(model(x)[:, 0])
            private.release()
    return private


def planned(steps: int) -> float:
    return qg.accounting.epsilon(qg.accounting.plan(MECHANISM, 0.5, steps), DELTA)


def test_three_runs_pay_together() -> None:
    """Each said 6.7 where 11.5 were spent."""
    ledger = qg.Ledger()
    runs = [run(ledger) for _ in range(3)]
    for private in runs:
        assert (
            private.epsilon(DELTA) == private.epsilon(DELTA, spent=True) == pytest.approx(planned(3 * STEPS))
        )


def test_what_is_left_of_a_run_is_counted_too() -> None:
    ledger = qg.Ledger()
    run(ledger)
    second = run(ledger, steps=1)
    assert second.epsilon(DELTA) == pytest.approx(planned(2 * STEPS))
    assert second.epsilon(DELTA, spent=True) == pytest.approx(planned(STEPS + 1))
    assert second.steps_left == STEPS - 1
    assert ledger.count == STEPS + 1, "nothing was recorded by asking"

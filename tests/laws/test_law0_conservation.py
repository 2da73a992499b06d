"""Law 0: what was released, recomputed from the objects, is what the ledger says; rows seen are rows drawn."""

from __future__ import annotations

import pytest
import torch

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._privatizer.research import Observer
from tests.cases.methods import METHODS, MethodCase, method_ids
from tests.cases.world import privatizer, run

DRAWS = [[0, 3, 5], [], [1, 2, 8, 9], [7]]


class ReleasedPrecision(Observer):
    def __init__(self) -> None:
        self.precisions: list[float] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.precisions.append(sum((part.sensitivity / part.std) ** 2 for part in released))


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_precision_of_what_was_released_equals_the_ledger(case: MethodCase) -> None:
    mechanism = case.build(0.7).with_noise(1.3)
    observer = ReleasedPrecision()
    with privatizer(mechanism, DRAWS, research=True) as (private, batches, model):
        private.watch(observer)
        run(private, batches, model, lr=0.1)
        phases = private.ledger.phases
    assert len(observer.precisions) == len(DRAWS)
    planned = [mechanism.multiplier(step) ** -2 for step in range(len(DRAWS))]
    assert observer.precisions == pytest.approx(planned, rel=1e-9)
    assert sum(phase.count for phase in phases) == len(DRAWS)
    assert all(phase.rate == 0.25 for phase in phases)


def test_a_mechanism_whose_noise_and_event_disagree_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = METHODS[0].build(1.0).with_noise(1.0)
    std = type(mechanism).std
    monkeypatch.setattr(type(mechanism), "std", lambda self, release, step: 0.5 * std(self, release, step))
    with (
        privatizer(mechanism, DRAWS) as (private, batches, model),
        pytest.raises(RuntimeError, match="accounted"),
    ):
        run(private, batches, model)


def test_rows_seen_are_rows_drawn() -> None:
    with privatizer(METHODS[0].build(1.0).with_noise(1.0), [[0, 1, 2, 3]]) as (private, batches, model):
        batch = next(iter(batches))
        x, _ = next(batch.split(4))
        with pytest.raises(ValueError, match="fewer losses than rows"):
            private.backward(model(x[:3]).sum(1))
        with pytest.raises(ValueError, match="before all drawn rows were seen"):
            private.release()
        assert private.ledger.count == 0
    assert torch.is_tensor(x)

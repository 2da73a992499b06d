"""Law 8: a resumed run costs what an uninterrupted one costs, or more; never less."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import SeededSource
from tests.cases.methods import BY_FAMILY, METHODS, MethodCase
from tests.cases.world import losses_of, privatizer, small_net

DRAWS = [[0, 1], [2], [], [3, 4], [5], [6, 7]]


def steps(private: Any, batches: Any, model: Any, count: int) -> None:
    for _, batch in zip(range(count), batches, strict=False):
        for x, y in batch.split(4):
            private.backward(losses_of(model, x, y))
        private.release()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.05 * p.grad


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """Through a file, without pickled code."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    loaded: dict[str, Any] = torch.load(buffer, weights_only=True)
    return loaded


@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_resumed_run_goes_on_and_counts_replayed_steps_again(case: MethodCase, tmp_path: Path) -> None:
    mechanism = case.build(0.5).with_noise(1.0)
    ledger = tmp_path / "ledger.jsonl"
    model = small_net()
    with privatizer(mechanism, DRAWS, model=model, ledger=ledger) as (private, batches, _):
        steps(private, batches, model, 2)
        checkpoint = saved(private.state_dict())
        weights = saved(model.state_dict())
        steps(private, batches, model, 1)  # lost: the crash comes after this release
    resumed = small_net()
    resumed.load_state_dict(weights)
    with privatizer(mechanism, DRAWS, model=resumed, ledger=ledger, source=SeededSource(6)) as (
        private,
        batches,
        _,
    ):
        private.load_state_dict(checkpoint)
        assert private.step == 2
        assert private.ledger.count == 3
        steps(private, batches, resumed, 3)
        assert private.ledger.count == 6
        with pytest.raises(ValueError, match="plan"):
            steps(private, batches, resumed, 1)  # the replayed step used the plan up
        assert private.epsilon(1e-5, spent=True) == pytest.approx(private.epsilon(1e-5))


@pytest.mark.parametrize("case", BY_FAMILY)
def test_another_mechanism_is_refused(case: MethodCase, tmp_path: Path) -> None:
    def start(mechanism: Mechanism, rate: float = 0.25) -> None:
        with privatizer(mechanism, DRAWS, ledger=tmp_path / "ledger.jsonl", rate=rate) as (
            private,
            batches,
            model,
        ):
            steps(private, batches, model, 1)

    start(case.build(0.5).with_noise(1.0))
    for changed in (case.build(0.5).with_noise(0.9), case.build(0.6).with_noise(1.0)):
        with pytest.raises(ValueError, match="of the same run"):
            start(changed)
    with pytest.raises(ValueError, match="of the same run"):
        start(case.build(0.5).with_noise(1.0), rate=0.2)


def test_a_shortened_ledger_is_noticed(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    mechanism = METHODS[0].build(0.5).with_noise(1.0)
    with privatizer(mechanism, DRAWS, ledger=ledger) as (private, batches, model):
        steps(private, batches, model, 3)
        checkpoint = private.state_dict()
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    with (
        privatizer(mechanism, DRAWS, ledger=ledger) as (private, _, _),
        pytest.raises(ValueError, match="last lines are missing"),
    ):
        private.load_state_dict(checkpoint)


@pytest.mark.parametrize("kept", [True, False])
def test_lost_steps_of_a_schedule_are_skipped(tmp_path: Path, kept: bool) -> None:
    """On 0.2: made again, they found their events used up, and the run could not be finished."""
    data = TensorDataset(torch.randn(40, 8), torch.randint(0, 3, (40,)))
    model, batches = torch.nn.Linear(8, 3), qg.PoissonBatches(data, rate=0.2, steps=15)
    keep = qg.schedules.Linear(start=1.0, end=0.2, length=2)
    mechanism = qg.methods.gip(model, batches, clip=1.0, theta=1e-3, keep=keep, group_size=4).with_noise(1.0)
    assert len({mechanism.event(step) for step in range(15)}) > 1

    def some(private: qg.Privatizer, count: int) -> None:
        for batch, _ in zip(batches, range(count), strict=False):
            for x, y in batch.split(64):
                private.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            private.release()

    path = tmp_path / "ledger.jsonl"
    with qg.Privatizer(model, mechanism, batches, ledger=path) as private:
        some(private, 2)
        checkpoint = saved(private.state_dict())
        some(private, 2)
    with qg.Privatizer(model, mechanism, batches, ledger=path) as private:
        if kept:
            private.load_state_dict(checkpoint)
        assert private.step == 4
        some(private, 15)
        assert private.steps_left == 0
        assert private.epsilon(1e-5, spent=True) == pytest.approx(private.epsilon(1e-5))

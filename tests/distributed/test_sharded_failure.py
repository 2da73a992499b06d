"""A sharded model's ranks draw their own noise, so none may do so before rank 0 has counted the step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.rank_kills import Case, measure

import quietgrad as qg
from tests.distributed.launch import launch
from tests.distributed.shard_models import build, data, losses_of, shard


def full_disk(rank: int, folder: str, reducer: str) -> None:
    model = build("mlp")
    if reducer == "Sharded":
        shard(model)
    batches = qg.PoissonBatches(data("mlp"), rate=0.5, steps=2)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    ranks = getattr(qg.distributed, reducer)()
    private = qg.Privatizer(model, mechanism, batches, ledger=Path(folder, "ledger.jsonl"), reducer=ranks)
    if rank == 0:

        def record(*_: Any, **__: Any) -> None:
            time.sleep(1.0)
            raise OSError("no space left on device")

        private.ledger.record = record  # type: ignore[method-assign]
    for batch in batches:
        for part in batch.split(64):
            private.backward(losses_of("mlp", model, part))
        try:
            private.release()
        finally:
            if any(p.grad is not None for p in private.parameters.values()):
                Path(folder, f"seen-{rank}").touch()


@pytest.mark.parametrize("reducer", ["AllReduce", "Sharded"])
def test_no_rank_sees_a_release_that_is_not_in_the_ledger(reducer: str, tmp_path: Path) -> None:
    """On the first version of Sharded: rank 1 drew the noise of its shard and wrote p.grad."""
    for outcome in launch(2, full_disk, str(tmp_path), reducer, timeout=30):
        assert "no space left on device" in str(outcome.error)
    assert not list(tmp_path.glob("seen-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("before the ledger", 0, 2, "Sharded"),
        Case("in the forward", 1, 2, "Sharded"),
        Case("saving", 0, 2, "AllReduce"),
    ],
    ids=lambda case: f"{case.reducer}, {case.phase}",
)
def test_a_killed_rank_ends_the_others_and_the_run_resumes_on_another_world_size(case: Case) -> None:
    found = measure(case)
    assert found["killed"]
    assert found["finished"]
    assert not found["hung"]
    assert not found["under-counted"]

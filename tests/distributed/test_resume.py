"""A checkpoint belongs to the run, not to its world size: four ranks save, two go on, one process would do the same."""

from __future__ import annotations

import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._collective import Reducer, SingleProcess
from quietgrad._noise.sources import SeededSource
from tests.cases.methods import METHODS
from tests.cases.world import privatizer, run, small_net
from tests.distributed.launch import launch, values

DRAWS = [list(range(12)), [3, 30], [], list(range(20, 40)), [1, 5, 9], [2, 7, 11]]
SAVED_AT = 3
STATEFUL = [
    case
    for case in METHODS
    if case.name in {"rgp", "dp_power_sgd_feedback", "gep", "ranked_freeze", "top_groups"}
]
Gradients = list[dict[str, Tensor]]
Saved = dict[str, tuple[bytes, bytes]]
"""Of each method, its checkpoint and its ledger."""


def first_half(rank: int) -> Saved:
    """Every method's first half, saved as a user would."""
    files = {}
    for case in STATEFUL:
        options: dict[str, Any] = {"reducer": qg.distributed.AllReduce(), "source": SeededSource(rank)}
        with privatizer(case.build(0.5).with_noise(0.0), DRAWS, **options) as (private, batches, model):
            batches.sampler.steps = SAVED_AT
            run(private, batches, model, lr=0.5)
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "private": private.state_dict()}, file)
            files[case.name] = file.getvalue(), pickle.dumps(private.ledger)
    return files


def second_half(rank: int, files: Saved) -> dict[str, Gradients]:
    return gone_on(qg.distributed.AllReduce(), rank, files)


def gone_on(reducer: Reducer, rank: int, files: Saved) -> dict[str, Gradients]:
    history = {}
    for case in STATEFUL:
        checkpoint, ledger = files[case.name]
        saved: dict[str, Any] = torch.load(io.BytesIO(checkpoint), weights_only=True)
        model = small_net()
        model.load_state_dict(saved["model"])
        mechanism = case.build(0.5).with_noise(0.0)
        options = {
            "model": model,
            "reducer": reducer,
            "source": SeededSource(rank),
            "ledger": pickle.loads(ledger),
        }
        with privatizer(mechanism, DRAWS, **options) as (private, batches, _):
            private.load_state_dict(saved["private"])
            history[case.name] = run(private, batches, model, lr=0.5)
    return history


@pytest.fixture(scope="module")
def files() -> list[Saved]:
    return values(launch(4, first_half))


def test_another_world_size_goes_on_as_one_process_would(files: list[Saved]) -> None:
    ranks = values(launch(2, second_half, files[0]))
    for case in STATEFUL:
        with privatizer(case.build(0.5).with_noise(0.0), DRAWS) as parts:
            whole = run(*parts, lr=0.5)[SAVED_AT:]
        for rank in [*ranks, gone_on(SingleProcess(), 0, files[0])]:
            assert len(rank[case.name]) == len(DRAWS) - SAVED_AT
            for mine, reference in zip(rank[case.name], whole, strict=True):
                for name in reference:
                    assert torch.allclose(mine[name], reference[name], atol=1e-5, rtol=0), (case.name, name)


def test_any_ranks_checkpoint_will_do(files: list[Saved]) -> None:
    def flat(file: bytes) -> list[Any]:
        leaves = torch.utils._pytree.tree_leaves(torch.load(io.BytesIO(file), weights_only=True))
        return [leaf.tolist() if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    for rank in files[1:]:
        assert all(flat(rank[name][0]) == flat(files[0][name][0]) for name in rank)

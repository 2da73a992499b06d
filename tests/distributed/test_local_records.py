"""Ranks that hold records of their own: one plan, one release, draws that no other rank knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._privatizer.facts import step_facts
from tests.distributed.launch import launch, values
from tests.distributed.shard_models import build, data, losses_of, shard

RATE, STEPS, RECORDS = 0.3, 4, 40
NOISE = qg.methods.dp_sgd(clip=0.5).with_noise(0.4)
MINE = [slice(0, 25), slice(25, 40)]
"""Which records each rank holds: not equally many."""


def own(rank: int) -> TensorDataset:
    return TensorDataset(*(tensor[MINE[rank]] for tensor in data("mlp").tensors))


def drawn(rank: int) -> list[list[int]]:
    return [[0, 3, 4, 24], [2, 7], [], [1]] if rank == 0 else [[1, 9], [], [], [14, 0, 3]]


def run(
    reducer: qg.distributed.Reducer, batches: qg.PoissonBatches, *, sharded: bool = False
) -> dict[str, Any]:
    model = build("mlp")
    if sharded:
        shard(model)
    seen, facts = [], []
    with qg.Privatizer(model, NOISE, batches, reducer=reducer, noise_source=Silent()) as private:
        for batch in batches:
            for part in batch.split(64):
                private.backward(losses_of("mlp", model, part))
            facts.append(step_facts(private.begin_step(), private.sampler, private.ledger).equal["draw"])
            private.release()
            seen.append({name: _whole(p.grad) for name, p in model.named_parameters() if p.grad is not None})
        return {"gradients": seen, "facts": facts, "protected": private.state_dict()["protected"]}


class Silent(qg.NoiseSource):
    """No noise on the grid of noise, so that sums are compared as integers."""

    private, std = False, 1 << 26

    def fill(self, out: Tensor) -> None:
        out.zero_()

    def bits(self, count: int) -> Tensor:
        raise NotImplementedError


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def refusal(dataset: TensorDataset, reducer: dict[str, Any], **options: Any) -> str:
    batches = qg.PoissonBatches(dataset, rate=RATE, steps=STEPS, **options)
    try:
        qg.Privatizer(build("mlp"), NOISE, batches, reducer=qg.distributed.AllReduce(**reducer)).close()
    except ValueError as error:
        return str(error)
    return ""


def both_ranks(rank: int) -> dict[str, Any]:
    local: dict[str, Any] = {"records": "local"}
    found: dict[str, Any] = {}
    for name, reducer in (
        ("all", qg.distributed.AllReduce(**local)),
        ("sharded", qg.distributed.Sharded(**local)),
    ):
        batches = qg.PoissonBatches.replay(own(rank), drawn(rank), rate=RATE)
        found[name] = run(reducer, batches, sharded=name == "sharded")
    found["same records"] = refusal(data("mlp"), local)
    found["users"] = refusal(own(rank), local, unit=list(range(len(own(rank)))), most_records=1)
    found["settings"] = refusal(data("mlp"), local if rank else {})
    found["shares"] = refusal(data("mlp"), {"honest": 1})
    found["too many"] = refusal(own(rank), {**local, "honest": 2})
    batches = qg.PoissonBatches(own(rank), rate=RATE, steps=STEPS)
    private = qg.Privatizer(build("mlp"), NOISE, batches, reducer=qg.distributed.AllReduce(**local))
    found["key"] = batches.sampler._key
    found["epsilon"] = private.epsilon(1e-3)
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return values(launch(2, both_ranks))


@pytest.mark.parametrize("name", ["all", "sharded"])
def test_ranks_with_their_own_records_release_what_one_process_does(
    ranks: list[dict[str, Any]], name: str
) -> None:
    model, records = build("mlp"), data("mlp")
    starts = [part.start for part in MINE]
    parts = [[[start + row for row in rows] for rows in drawn(rank)] for rank, start in enumerate(starts)]
    sampler = qg.PoissonBatches.replay(
        records, [a + b for a, b in zip(*parts, strict=True)], rate=RATE
    ).sampler
    with qg.Privatizer(model, NOISE, sampler, noise_source=Silent()) as private:
        for step, _ in enumerate(sampler):
            for part in (parts[0][step], parts[1][step]):
                if part:
                    x, y = records[part]
                    private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            for rank in ranks:
                for key, p in model.named_parameters():
                    assert p.grad is not None
                    torch.testing.assert_close(
                        rank[name]["gradients"][step][key], p.grad, atol=1e-7, rtol=1e-5
                    )
    for rank in ranks:
        assert rank[name]["protected"] == {"records": RECORDS}


def test_no_rank_learns_what_another_drew(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["all"]["facts"] == [None] * len(drawn(0))
        assert rank["key"] is None  # each draw has fresh entropy of its own rank


def test_the_cost_is_that_of_one_process(ranks: list[dict[str, Any]]) -> None:
    batches = qg.PoissonBatches(data("mlp"), rate=RATE, steps=STEPS)
    expected = qg.Privatizer(build("mlp"), NOISE, batches).epsilon(1e-3)
    assert [rank["epsilon"] for rank in ranks] == [expected, expected]


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("same records", "every record would count twice"),
        ("users", "plain Poisson draws"),
        ("settings", "trust between ranks"),
        ("shares", 'pass records="local"'),
        ("too many", "Expected 1 ≤ honest ≤ 1"),
    ],
)
def test_both_ranks_refuse(ranks: list[dict[str, Any]], case: str, says: str) -> None:
    for rank in ranks:
        assert says in rank[case]

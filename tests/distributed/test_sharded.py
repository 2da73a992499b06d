"""A model under fully_shard releases what one process releases, bit for bit, and refuses what it cannot do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._sampling.poisson import ReplayedSampler
from tests.distributed.launch import launch, values
from tests.distributed.shard_models import RECORDS, Scripted, build, data, losses_of, shard

CASES = [("mlp", "dp_sgd"), ("mlp", "freeze"), ("tied", "dp_sgd"), ("lora", "dp_sgd")]
DRAWS = [list(range(9)), [3, 5, 8, 9, 12, 13, 30, 33], []]
"""Parts of unequal size, and an empty draw. No part of one record: with its stand-in a kernel may round otherwise."""
METHODS = {
    "dp_sgd": lambda: qg.methods.dp_sgd(clip=0.5).with_noise(0.4),
    "freeze": lambda: qg.methods.random_freeze(freeze=0.6, clip=0.5).with_noise(0.4),
}
FIXED: dict[str, Any] = {"deterministic": True, "public_seed": 7}

History = list[dict[str, Tensor]]


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def shapes(model: nn.Module) -> list[torch.Size]:
    return [p.shape for p in model.parameters() if p.requires_grad]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}


def train_rank(_: int, world: int) -> dict[str, History]:
    """Every model and method on this rank."""
    found = {}
    for kind, method in CASES:
        model = build(kind)
        source = Scripted(shapes(model), world)
        shard(model)
        batches = qg.PoissonBatches.replay(data(kind), DRAWS, rate=0.25)
        optimizer, history = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), []
        options = {**FIXED, "noise_source": source, "reducer": qg.distributed.Sharded()}
        with qg.Privatizer(model, METHODS[method](), batches, **options) as private:
            for batch in batches:
                for part in batch.split(64):
                    private.backward(losses_of(kind, model, part))
                private.release()
                history.append(gradients(model))
                optimizer.step()
        history.append({name: whole(p.detach()) for name, p in model.named_parameters()})
        found[f"{kind} {method}"] = history
    return found


def train_alone(kind: str, method: str, world: int) -> History:
    """One process, whose micro-batches are what the ranks would have."""
    model, records, sampler = build(kind), data(kind), ReplayedSampler(RECORDS, DRAWS, rate=0.25)
    optimizer, history = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), []
    options = {**FIXED, "noise_source": Scripted(shapes(model))}
    with qg.Privatizer(model, METHODS[method](), sampler, **options) as private:
        for rows in sampler:
            for rank in range(world):
                if part := rows[rank::world]:
                    private.backward(losses_of(kind, model, records[part]))
            private.release()
            history.append(gradients(model))
            optimizer.step()
    return [*history, {name: p.detach().clone() for name, p in model.named_parameters()}]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("world", [pytest.param(1, marks=SLOW), 2, pytest.param(4, marks=SLOW)])
def test_shards_release_the_very_bits_of_one_process(world: int) -> None:
    ranks = values(launch(world, train_rank, world))
    for kind, method in CASES:
        expected = train_alone(kind, method, world)
        for rank in ranks:
            mine = rank[f"{kind} {method}"]
            assert len(mine) == len(expected)
            for step, (ours, theirs) in enumerate(zip(mine, expected, strict=True)):
                assert ours.keys() == theirs.keys()
                for name in theirs:
                    assert torch.equal(ours[name], theirs[name]), (kind, method, step, name)

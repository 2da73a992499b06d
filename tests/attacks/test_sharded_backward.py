"""Sharded models: a raw backward reaches the gathered parameter, which is another object than the one users hold.

A guard that watches shards alone would never see it, and the raw gradient would be reduce-scattered into p.grad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

import quietgrad as qg
from tests.distributed.launch import launch, values
from tests.distributed.shard_models import build, data, losses_of, shard

MECHANISM = qg.methods.dp_sgd(clip=1e-6).with_noise(1.0)


def read(private: qg.Privatizer) -> Tensor:
    """Every gradient that the optimizer would use, on this rank."""
    shards: list[Any] = [p.grad for p in private.parameters.values()]
    return torch.cat([shard.to_local().flatten() for shard in shards])


def raw(model: nn.Module, batch: list[Tensor]) -> None:
    (1000 * losses_of("mlp", model, batch)).mean().backward()


def gathered_by_hand(model: nn.Module, batch: list[Tensor]) -> None:
    """Gather the shards in the graph itself, and compute with a plain copy of the model."""
    shards: dict[str, Any] = dict(model.named_parameters())
    whole = {name: shard.full_tensor() for name, shard in shards.items()}
    out = functional_call(build("mlp"), whole, batch[0])
    (1000 * nn.functional.cross_entropy(out, batch[1])).backward()


def attack(attacker: Callable[[nn.Module, list[Tensor]], None]) -> tuple[bool, float]:
    model = shard(build("mlp"))
    batches = qg.PoissonBatches(data("mlp"), rate=1.0, steps=1)
    with qg.Privatizer(model, MECHANISM, batches, reducer=qg.distributed.Sharded()) as private:
        for batch in batches:
            for part in batch.split(64):
                private.backward(losses_of("mlp", model, part))
            private.release()
            released = read(private)
            refused = False
            try:
                attacker(model, part)
            except qg.PrivacyError:
                refused = True
            return refused, float((read(private) - released).abs().max())
    raise AssertionError


def attacks(_: int) -> list[tuple[bool, float]]:
    return [attack(raw), attack(gathered_by_hand)]


def test_a_raw_backward_of_a_sharded_model_is_refused() -> None:
    """With the guard on shards alone: accepted, p.grad moved by the whole raw gradient."""
    for rank in values(launch(1, attacks, timeout=30)):
        assert rank == [(True, 0.0), (True, 0.0)]


class Writes(nn.Module):
    """Writes what it sees into its own shard, which no torch counter of the gathered parameter shows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("mlp")
        self.shards: list[Callable[[], Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for shard_of in self.shards:
                shard_of().data.add_(x.mean())
        out: Tensor = self.inner(x)
        return out


def write(_: int) -> str:
    model = Writes()
    shard(model.inner)
    torch.distributed.fsdp.fully_shard(model)
    batches = qg.PoissonBatches(data("mlp"), rate=1.0, steps=1)
    with qg.Privatizer(model, MECHANISM, batches, reducer=qg.distributed.Sharded()) as private:
        first: Any = next(model.parameters())
        model.shards.append(lambda: first.to_local())
        for batch in batches:
            for part in batch.split(64):
                private.backward(losses_of("mlp", model, part))
            private.release()
    return "released"


def test_private_data_written_into_a_shard_is_refused() -> None:
    for outcome in launch(1, write, timeout=30):
        assert outcome.value is None
        assert "changed between the forward and the release" in str(outcome.error)

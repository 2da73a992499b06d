"""Ranks of a sharded model run the same passes, whatever each of them drew: none waits for another for ever.

Every launch here ends after 60 seconds and says where a rank was.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import quietgrad as qg
from tests.distributed.launch import launch, values
from tests.distributed.shard_models import build, data, losses_of, shard

UNEVEN = [[7], list(range(9)), [], [1, 2, 3, 4, 5, 8]]
"""With two ranks and micro-batches of two: 1 and 0 records, 5 and 4, none at all, 3 and 3."""
NOISELESS = qg.methods.dp_sgd(clip=0.5).with_noise(0.0)
PATIENCE = 30.0
Losses = Callable[[nn.Module, list[Tensor]], Tensor]


def plain(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return losses_of("mlp", model, batch)


def mixing(model: nn.Module, batch: list[Tensor]) -> Tensor:
    own = plain(model, batch)
    return own * own.detach().mean()  # of which the graph says nothing


def run(losses: Losses, draws: list[list[int]], *, sharded: bool, micro: int = 2) -> list[dict[str, Tensor]]:
    model = build("mlp")
    if sharded:
        shard(model)
    batches = qg.PoissonBatches.replay(data("mlp"), draws, rate=0.25)
    reducer = qg.distributed.Sharded() if sharded else None
    history = []
    with qg.Privatizer(model, NOISELESS, batches, reducer=reducer, public_seed=1) as private:
        for batch in batches:
            for part in batch.split(micro):
                private.backward(losses(model, part))
            private.release()
            history.append({name: whole(p.grad) for name, p in model.named_parameters()})
    return history


def whole(grad: Any) -> Tensor:
    tensor: Tensor = grad.full_tensor() if hasattr(grad, "full_tensor") else grad.clone()
    return tensor


def uneven(_: int) -> list[dict[str, Tensor]]:
    return run(plain, UNEVEN, sharded=True)


def test_ranks_with_unequal_parts_end_and_stand_ins_add_nothing() -> None:
    expected = run(plain, UNEVEN, sharded=False)
    for rank in values(launch(2, uneven, timeout=PATIENCE)):
        for mine, theirs in zip(rank, expected, strict=True):
            for name in theirs:
                assert torch.allclose(mine[name], theirs[name], atol=1e-6, rtol=0), name


def mix_on_one(rank: int) -> None:
    run(mixing if rank == 1 else plain, [list(range(12))], sharded=True, micro=8)


def test_records_that_one_rank_mixes_are_refused_on_all() -> None:
    for outcome in launch(2, mix_on_one, timeout=PATIENCE):
        assert "The loss or gradient of one record depends on other records" in str(outcome.error)


def collate(records: list[Any]) -> Any:
    if dist.get_rank() == 1 and len(records) > 3:
        raise OSError("unreadable")
    return torch.utils.data.default_collate(records)


def unreadable(_: int) -> None:
    model = shard(build("mlp"))
    batches = qg.PoissonBatches(data("mlp"), rate=1.0, steps=1, collate_fn=collate)
    with qg.Privatizer(model, NOISELESS, batches, reducer=qg.distributed.Sharded()) as private:
        for batch in batches:
            for part in batch.split(8):
                private.backward(plain(model, part))
            private.release()


def test_a_record_that_one_rank_cannot_read_stops_all() -> None:
    one, two = launch(2, unreadable, timeout=PATIENCE)
    assert "Rank 1 cannot go on. OSError: unreadable" in str(one.error)
    assert "OSError: unreadable" in str(two.error)


def slow_rank(rank: int) -> None:
    model = shard(build("mlp"))
    batches = qg.PoissonBatches(data("mlp"), rate=1.0, steps=1)
    reducer = qg.distributed.Sharded(timeout=2.0)
    with qg.Privatizer(model, NOISELESS, batches, reducer=reducer) as private:
        for batch in batches:
            time.sleep(4.0 * rank)
            for part in batch.split(64):
                private.backward(plain(model, part))
            private.release()


def test_a_slow_rank_ends_the_others_after_the_timeout() -> None:
    for outcome in launch(2, slow_rank, timeout=PATIENCE):
        assert "Another rank ended or did not answer" in str(outcome.error)


REFUSED: dict[str, tuple[Callable[[], qg.Mechanism], str]] = {
    "rgp": (lambda: qg.methods.rgp(rank=1, clip=1.0), "maps whole layers"),
    "gep": (
        lambda: qg.methods.gep(lambda model: model(torch.ones(2, 6)).sum(1), rank=1),
        "maps whole layers",
    ),
    "per group": (lambda: qg.methods.dp_sgd(clip=qg.PerGroupClip({"": 1.0})), "PerGroupClip cannot clip"),
}


def refuse(_: int) -> dict[str, str]:
    found = {}
    for name, (method, _message) in REFUSED.items():
        model, batches = shard(build("mlp")), qg.PoissonBatches(data("mlp"), rate=0.5, steps=2)
        try:
            qg.Privatizer(model, method().with_noise(1.0), batches, reducer=qg.distributed.Sharded())
        except ValueError as error:
            found[name] = str(error)
    return found


def other_wrapping(rank: int) -> None:
    model = build("mlp")
    if rank == 0:
        shard(model)
    else:
        torch.distributed.fsdp.fully_shard(model)
    batches = qg.PoissonBatches(data("mlp"), rate=0.5, steps=2)
    qg.Privatizer(model, NOISELESS, batches, reducer=qg.distributed.Sharded())


def test_methods_that_need_whole_layers_are_refused_by_name() -> None:
    for rank in values(launch(1, refuse, timeout=PATIENCE)):
        assert rank.keys() == REFUSED.keys()
        for name, (_, message) in REFUSED.items():
            assert message in rank[name]


def test_another_wrap_policy_is_refused_on_all_ranks() -> None:
    for outcome in launch(2, other_wrapping, timeout=PATIENCE):
        assert "The ranks disagree on wrap policy" in str(outcome.error)


@pytest.mark.parametrize("micro", [1, 3])
def test_one_process_hands_out_no_stand_ins(micro: int) -> None:
    batches = qg.PoissonBatches.replay(data("mlp"), [[1, 2, 3, 4]], rate=0.5)
    batch = next(iter(batches))
    assert sum(len(x) for x, _ in batch.split(micro)) == 4
    assert batch.stand_ins == 0

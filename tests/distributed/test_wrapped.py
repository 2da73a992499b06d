"""A model in DistributedDataParallel trains like the module inside: nothing that DDP would send is sent."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import quietgrad as qg
from tests.cases.world import losses_of, records, small_net
from tests.distributed.launch import launch, values

DRAWS = [[7], list(range(9)), [], [1, 2, 3]]
"""A rank without records runs no forward; DDP's buffers would wait for it."""


def train(_: int, wraps: bool) -> tuple[list[str], list[Tensor]]:
    model = small_net()
    model.register_buffer("seen", torch.zeros(3))
    outer = DistributedDataParallel(model) if wraps else model
    batches = qg.PoissonBatches.replay(records(), DRAWS, rate=0.25)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(0.5)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        private = qg.Privatizer(
            outer,
            mechanism,
            batches,
            reducer=qg.distributed.AllReduce(),
            noise_source=qg.SeededSource(1),
            deterministic=True,
            public_seed=3,
        )
    optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
    for batch in batches:
        for x, y in batch.split(4):
            private.backward(losses_of(outer, x, y))
        private.release()
        optimizer.step()
    private.close()
    return [str(one.message) for one in said], [p.detach() for p in model.parameters()]


def both(rank: int) -> tuple[list[str], bool]:
    said, wrapped = train(rank, True)
    bare = train(rank, False)[1]
    return said, all(torch.equal(a, b) for a, b in zip(wrapped, bare, strict=True))


def test_a_wrapped_model_trains_as_the_bare_one_and_says_so() -> None:
    for said, equal in values(launch(2, both, timeout=30)):
        assert equal
        assert any("DistributedDataParallel, which averages raw gradients" in message for message in said)

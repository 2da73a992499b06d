"""A habit: `loss.backward()` beside the private step. The raw gradient lands on top of what was released.

The adversary reads p.grad as the optimizer does, and subtracts nothing: the un-noised gradient is in it.
"""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import read


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))


def data() -> TensorDataset:
    return TensorDataset(torch.randn(8, 4, generator=torch.Generator().manual_seed(2)))


def losses(model: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = model(x).square().sum(1)
    return out


def test_a_backward_after_the_release_leaves_it_alone_or_is_refused() -> None:
    """On 0.1: accepted, p.grad moved by the whole raw gradient."""
    model, batches = net(), qg.PoissonBatches(data(), rate=1.0, steps=1)
    mechanism = qg.methods.dp_sgd(clip=1e-6).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(losses(model, x))
            private.release()
            released = read(model)
            with contextlib.suppress(ValueError):
                (1000 * losses(model, x)).mean().backward()
            assert torch.equal(read(model), released)


def test_a_backward_between_the_micro_batches_leaves_nothing() -> None:
    """On 0.1: already made right, `release` overwrites; whatever refuses it may not break that."""
    model, batches = net(), qg.PoissonBatches(data(), rate=1.0, steps=1)
    mechanism = qg.methods.dp_sgd(clip=1e-6).with_noise(1.0)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for (x,) in batch.split(4):
                private.backward(losses(model, x))
                with contextlib.suppress(ValueError):
                    (1000 * losses(model, x)).mean().backward()
            private.release()
            assert float(read(model).abs().max()) < 1e-4


def test_the_same_losses_cannot_be_used_twice() -> None:
    """The loop keeps the graph, takes the private step and then the usual one, and steps the optimizer."""
    model, batches = net(), qg.PoissonBatches(data(), rate=1.0, steps=1)
    mechanism = qg.methods.dp_sgd(clip=1e-6).with_noise(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = [p.detach().clone() for p in model.parameters()]
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for (x,) in batch.split(8):
                private.backward(losses(model, x))
            private.release()
            with contextlib.suppress(ValueError):
                (1000 * losses(model, x)).mean().backward()
            optimizer.step()
    moved = max(float((p - old).abs().max()) for p, old in zip(model.parameters(), before, strict=True))
    assert moved < 1e-4

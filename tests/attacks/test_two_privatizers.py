"""Two models trained on one draw: each Privatizer reports its own ε, and nobody the ε of both.

The composition of two steps on the *same* Poisson batch costs more than two steps on batches of their own.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg


def net() -> nn.Module:
    return nn.Linear(4, 1)


def data() -> TensorDataset:
    return TensorDataset(torch.randn(8, 4))


MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def test_two_privatizers_on_the_same_batches_are_refused() -> None:
    """On 0.1: accepted; both models took gradients of each batch, and each reported five steps."""
    batches = qg.PoissonBatches(data(), rate=0.5, steps=5)
    with (
        qg.Privatizer(net(), MECHANISM, batches),
        pytest.raises(ValueError, match="already belong to a Privatizer"),
    ):
        qg.Privatizer(net(), MECHANISM, batches)


def test_two_privatizers_on_the_same_sampler_are_refused() -> None:
    """On 0.1: accepted; one DataLoader fed both."""
    sampler = qg.PoissonSampler(8, rate=0.5, steps=5)
    with (
        qg.Privatizer(net(), MECHANISM, sampler),
        pytest.raises(ValueError, match="already belong to a Privatizer"),
    ):
        qg.Privatizer(net(), MECHANISM, sampler)


def test_a_sampler_cannot_serve_a_second_loader_under_another_name() -> None:
    """On 0.1: accepted; the batches of one Privatizer and their bare sampler for the other."""
    batches = qg.PoissonBatches(data(), rate=0.5, steps=5)
    with (
        qg.Privatizer(net(), MECHANISM, batches),
        pytest.raises(ValueError, match="already belong to a Privatizer"),
    ):
        qg.Privatizer(net(), MECHANISM, batches.sampler)


def test_one_batch_does_not_go_through_two_privatizers() -> None:
    """Two plans of their own, whose draws have as many rows: the second is fed with the batch of the first."""
    full = TensorDataset(torch.randn(8, 4))
    mine, other = (qg.PoissonSampler(8, rate=1.0, steps=1) for _ in range(2))
    first, second = net(), net()
    with (
        qg.Privatizer(first, MECHANISM, mine) as a,
        qg.Privatizer(second, MECHANISM, other) as b,
    ):
        for (x,), _ in zip(DataLoader(full, batch_sampler=mine), other, strict=True):
            a.backward(first(x)[:, 0])
            a.release()
            with pytest.raises(ValueError, match="already went through another Privatizer"):
                b.backward(second(x)[:, 0])

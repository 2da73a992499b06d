"""Forked copies: child and parent hold the same generator and draw the same noise, or the same batch.

The adversary gets a release of each. With one noise in both, the difference is the exact difference of their sums.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from tests.attacks.harness import read

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")


def in_child(task: Callable[[], list[Any]]) -> list[Any]:
    """The result of a task in a forked copy of this process; nothing, if it was refused there."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # torch itself refuses a backward in a fork, where a device's thread was started before: a RuntimeError.
            with contextlib.suppress(ValueError, RuntimeError):
                os.write(writing, pickle.dumps(task()))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        sent = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return list(pickle.loads(sent)) if sent else []


def one_release(private: qg.Privatizer, batches: qg.PoissonBatches, model: nn.Module) -> list[float]:
    """Of the next batch; the draws are empty, so that all of it is noise."""
    next(iter(batches))
    private.release()
    values: list[float] = read(model).tolist()
    return values


@pytest.mark.parametrize("warm", [0, 1])
@pytest.mark.parametrize("source", ["default", "hardened"])
def test_a_child_draws_noise_of_its_own(source: str, warm: int) -> None:
    """On 0.1: equal in all coordinates by default, forked before or after the first release; hardened was right."""
    model, mechanism = nn.Linear(8, 8), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    batches = qg.PoissonBatches.replay(TensorDataset(torch.randn(8, 8)), [[], [], []], rate=0.5)
    with qg.Privatizer(model, mechanism, batches, noise_source=source) as private:
        for _ in range(warm):
            one_release(private, batches, model)
        theirs = in_child(lambda: one_release(private, batches, model))
        mine = one_release(private, batches, model)
    assert not set(theirs) & set(mine)


def test_two_children_draw_noise_of_their_own() -> None:
    """On 0.1: equal in all coordinates."""
    model, mechanism = nn.Linear(8, 8), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    batches = qg.PoissonBatches.replay(TensorDataset(torch.randn(8, 8)), [[], [], []], rate=0.5)
    with qg.Privatizer(model, mechanism, batches) as private:
        first, second = (in_child(lambda: one_release(private, batches, model)) for _ in range(2))
    assert not set(first) & set(second)


@pytest.mark.parametrize("warm", [0, 1])
def test_a_child_draws_a_batch_of_its_own(warm: int) -> None:
    """On 0.1: the same record numbers in child and parent."""
    sampler = qg.PoissonSampler(1000, rate=0.5, steps=3)
    draws = iter(sampler)
    for _ in range(warm):
        next(draws)
    assert in_child(lambda: next(draws)) != next(draws)


def test_a_child_does_not_release_its_parents_batch() -> None:
    """On 0.2: both released the batch that was drawn before the fork, and each ledger in memory counted one."""
    model, mechanism = nn.Linear(8, 8), qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    batches = qg.PoissonBatches(TensorDataset(torch.randn(8, 8)), rate=0.5, steps=3)
    with qg.Privatizer(model, mechanism, batches) as private:
        batch = next(iter(batches))

        def release() -> list[float]:
            for (x,) in batch.split(8):
                private.backward(model(x).sum(1))
            private.release()
            values: list[float] = read(model).tolist()
            return values

        assert in_child(release) == []
        assert release()
    assert private.ledger.count == 1

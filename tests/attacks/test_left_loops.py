"""Loops that are left: `zip(batches, range(k))` draws one batch too many, and workers draw ahead.

Nothing leaks, but the careless caller is stranded: the next loop refuses to go on, or counts rows of draws that nobody
saw, and he starts again with a new budget. Every plan must go on where it was left, and end with the plan.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import quietgrad as qg

STEPS = 6


class Rows(Dataset[tuple[Tensor]]):
    """Not a TensorDataset: goes through a DataLoader."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor]:
        return (torch.full((2,), float(index)),)


def net() -> nn.Module:
    return nn.Linear(2, 1)


MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


def step(private: qg.Privatizer, model: nn.Module, micro_batches: Iterable[list[Tensor]]) -> None:
    for (x,) in micro_batches:
        private.backward(model(x)[:, 0])
    private.release()


def datasets() -> list[Dataset[tuple[Tensor, ...]]]:
    return [TensorDataset(torch.randn(64, 2)), Rows()]


@pytest.mark.parametrize("data", datasets(), ids=["tensors", "records"])
def test_a_zipped_loop_can_be_gone_on_with(data: Dataset[tuple[Tensor, ...]]) -> None:
    """On 0.1: "The last batch was not released", forever."""
    model, batches = net(), qg.PoissonBatches(data, rate=0.25, steps=STEPS)
    with qg.Privatizer(model, MECHANISM, batches) as private:
        for batch, _ in zip(batches, range(2), strict=False):
            step(private, model, batch.split(64))
        for batch in batches:
            step(private, model, batch.split(64))
        assert private.step == STEPS
        assert private.steps_left == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_left_early_can_be_gone_on_with(workers: int) -> None:
    """On 0.1: with workers the rows drawn ahead are waited for, and the next batch is refused."""
    model, batches = net(), qg.PoissonBatches(Rows(), rate=0.25, steps=STEPS, workers=workers)
    with qg.Privatizer(model, MECHANISM, batches) as private:
        for batch in batches:
            step(private, model, batch.split(64))
            if private.step == 2:
                break
        for batch in batches:
            step(private, model, batch.split(64))
        assert private.step == STEPS
        assert private.steps_left == 0


def test_a_data_loader_left_early_can_be_gone_on_with() -> None:
    """The same with a DataLoader of the caller's own, which draws four batches ahead."""
    sampler, model = qg.PoissonSampler(64, rate=0.25, steps=STEPS), net()
    loader = DataLoader(
        Rows(), batch_sampler=sampler, num_workers=2, collate_fn=qg.collate_possibly_empty(Rows())
    )
    with qg.Privatizer(model, MECHANISM, sampler) as private:
        for rows in loader:
            step(private, model, [rows])
            if private.step == 2:
                break
        for rows in loader:
            step(private, model, [rows])
        assert private.step == STEPS

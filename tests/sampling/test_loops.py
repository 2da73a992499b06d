"""Loops that are left, begun again or run twice: every draw of a plan is released once, under one Privatizer."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import quietgrad as qg
from quietgrad._mechanism.clipping import MARGIN

STEPS = 6
MECHANISM = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)


class Numbers(Dataset[tuple[Tensor]]):
    """Record i is the number i."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Tensor]:
        return (torch.full((2,), float(index)),)


def net() -> nn.Module:
    return nn.Linear(2, 1)


def planned() -> list[list[int]]:
    return list(qg.PoissonSampler(40, rate=0.25, steps=STEPS, seed=3))


def numbers(x: Tensor) -> list[int]:
    return [int(value) for value in x[:, 0]]


def test_prefetching_workers_lose_no_draw() -> None:
    """Left after every step: the workers had drawn four batches ahead each time."""
    model, sampler = net(), qg.PoissonSampler(40, rate=0.25, steps=STEPS, seed=3)
    loader = DataLoader(
        Numbers(), batch_sampler=sampler, num_workers=2, collate_fn=qg.collate_possibly_empty(Numbers())
    )
    seen = []
    with qg.Privatizer(model, MECHANISM, sampler) as private:
        while private.steps_left:
            (x,) = next(iter(loader))
            seen.append(numbers(x))
            private.backward(model(x)[:, 0])
            private.release()
    assert seen == planned()
    assert len(loader) == STEPS


def test_a_batch_left_unfinished_is_handed_out_again_and_counts_once() -> None:
    batches = qg.PoissonBatches(Numbers(), rate=0.25, steps=STEPS, seed=3)
    model = net()
    with qg.Privatizer(model, MECHANISM.with_noise(0.0), batches) as private:
        for (x,) in next(iter(batches)).split(3):
            private.backward(model(x)[:, 0])
            break
        seen = []
        for (x,) in next(iter(batches)).split(3):
            seen += [] if private.independence.is_asking else numbers(x)
            private.backward(model(x)[:, 0])
        private.release()
        assert seen == planned()[0]
        # Each row's gradient is (x, x, 1), clipped to 1: the bias shows how many rows were summed.
        rows = torch.tensor(seen).double()
        expected = ((1 - MARGIN) / (2 * rows.square() + 1).sqrt()).clamp(max=1).sum() / 10
        bias = dict(model.named_parameters())["bias"].grad
        assert bias is not None
        assert float(bias) == pytest.approx(float(expected), rel=1e-5)


def test_a_loop_that_another_one_replaced_is_refused() -> None:
    batches, model = qg.PoissonBatches(Numbers(), rate=0.25, steps=STEPS), net()
    with qg.Privatizer(model, MECHANISM, batches) as private:
        first, second = iter(batches), iter(batches)
        next(first)
        for (x,) in next(second).split(40):
            private.backward(model(x)[:, 0])
        private.release()
        with pytest.raises(ValueError, match="loop at a time"):
            next(first)


def test_after_close_the_sampler_serves_another_plan_with_fresh_draws() -> None:
    sampler = qg.PoissonSampler(1000, rate=0.5, steps=3)
    with qg.Privatizer(net(), MECHANISM, sampler):
        drawn = next(iter(sampler))
    with qg.Privatizer(net(), MECHANISM, sampler) as private:
        assert private.step == 0
        assert next(iter(sampler)) != drawn
        assert len(list(sampler)) == 3, "nothing was released: the loop begins with the first draw"


def test_a_privatizer_thrown_away_lets_its_sampler_go() -> None:
    sampler = qg.PoissonSampler(10, rate=0.5, steps=3)
    private = qg.Privatizer(net(), MECHANISM, sampler)
    with pytest.raises(ValueError, match="already belong"):
        qg.Privatizer(net(), MECHANISM, sampler)
    del private
    gc.collect()
    qg.Privatizer(net(), MECHANISM, sampler).close()


def test_a_copy_of_owned_batches_is_free_and_hands_out_nothing_drawn() -> None:
    batches = qg.PoissonBatches(Numbers(), rate=0.5, steps=STEPS)
    with qg.Privatizer(net(), MECHANISM, batches):
        next(iter(batches))
        twin = copy.deepcopy(batches)
        assert not twin.sampler.owned
        assert twin.sampler.rows(0) is None

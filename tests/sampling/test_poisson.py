"""Poisson draws: the distribution, the ways to use them, empty batches."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import quietgrad as qg
from quietgrad._collective import SingleProcess


def test_each_record_is_drawn_independently_at_the_rate() -> None:
    draws = list(qg.PoissonSampler(30, rate=0.2, steps=4000, seed=1))
    member = np.zeros((4000, 30))
    for step, rows in enumerate(draws):
        assert rows == sorted(set(rows))
        member[step, rows] = 1
    inclusion = member.mean(0)
    assert np.abs(inclusion - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / 4000)
    covariance = np.cov(member.T)[~np.eye(30, dtype=bool)]
    assert np.abs(covariance).max() < 5.5 * 0.16 / np.sqrt(4000)
    sizes = np.bincount([len(rows) for rows in draws], minlength=31)
    expected = stats.binom(30, 0.2).pmf(np.arange(31)) * 4000
    keep = expected > 5
    assert (
        stats.chisquare(sizes[keep], expected[keep] * sizes[keep].sum() / expected[keep].sum()).pvalue > 1e-3
    )


def test_unseeded_draws_differ_and_are_private() -> None:
    a, b = (qg.PoissonSampler(1000, rate=0.1, steps=1) for _ in range(2))
    assert next(iter(a)) != next(iter(b))
    assert a.private
    assert not qg.PoissonSampler(10, rate=0.1, steps=1, seed=0).private


class TwoRanks(SingleProcess):
    """The first of two ranks: draws come from a key that both have."""

    world = 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_copies_and_forks_of_a_private_sampler_draw_afresh(ranks: int) -> None:
    def fresh() -> qg.PoissonSampler:
        sampler = qg.PoissonSampler(2000, rate=0.1, steps=9)
        sampler.divide(TwoRanks() if ranks == 2 else SingleProcess())
        return sampler

    sampler = fresh()
    copies = [copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler)), copy.copy(sampler), fresh()]
    draws = [tuple(each.draw()) for each in (*copies, sampler, sampler)]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, pickle.dumps(sampler.draw()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        draws += [tuple(pickle.loads(pipe.read())), tuple(sampler.draw())]
    os.waitpid(child, 0)
    assert len(set(draws)) == len(draws)


def test_ranks_share_every_draw_and_never_repeat_one() -> None:
    first = qg.PoissonSampler(2000, rate=0.1, steps=9)
    first.divide(TwoRanks())

    class Second(SingleProcess):
        rank, world = 1, 2

        def broadcast(self, make: Any) -> Any:
            return first._key, first._draws_made

    second = qg.PoissonSampler(2000, rate=0.1, steps=9)
    second.divide(Second())
    draws = [(tuple(first.draw()), tuple(second.draw())) for _ in range(4)]
    assert all(a == b for a, b in draws)
    first.skip_to(0)  # a replayed step is drawn anew
    assert len({*draws, (tuple(first.draw()),)}) == 5


class Squares(Dataset[tuple[Tensor, int]]):
    """A map-style data set without tensors to index."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((4,), float(index)), index % 2


def test_a_map_style_data_set_with_workers_gives_the_same_rows() -> None:
    for workers in (0, 1):
        batches = qg.PoissonBatches(Squares(), rate=0.5, steps=3, seed=4, workers=workers)
        plain = list(qg.PoissonSampler(20, rate=0.5, steps=3, seed=4))
        for rows, batch in zip(plain, batches, strict=True):
            seen = [int(value) for x, _ in batch.split(3) for value in x[:, 0]]
            assert seen == rows


def test_tensor_fast_path_equals_the_slow_one() -> None:
    data = TensorDataset(torch.arange(20.0), torch.arange(20))
    for batch, rows in zip(
        qg.PoissonBatches(data, rate=0.4, steps=5, seed=2),
        qg.PoissonSampler(20, rate=0.4, steps=5, seed=2),
        strict=True,
    ):
        got = torch.cat([x for x, _ in batch.split(3)]) if len(batch) else torch.zeros(0)
        assert got.tolist() == rows


def test_iterating_again_goes_on_where_it_stopped() -> None:
    batches = qg.PoissonBatches(Squares(), rate=0.5, steps=5, seed=4)
    first = [len(batch) for _, batch in zip(range(2), batches, strict=False)]
    assert len(batches) == len(batches.sampler) == 5, "the plan, not what is left of it"
    assert len(first) + len(list(batches)) == 5


def test_a_data_loader_with_the_sampler_trains_privately_through_empty_draws() -> None:
    data = Squares()
    sampler = qg.PoissonSampler(len(data), rate=0.05, steps=12, seed=3)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=qg.collate_possibly_empty(data))
    model = nn.Linear(4, 2)
    sizes = []
    with qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), sampler) as private:
        for x, y in loader:
            sizes.append(len(x))
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            assert model.weight.grad is not None
            assert float(model.weight.grad.abs().sum()) > 0
    assert 0 in sizes
    assert max(sizes) > 0
    assert private.step == 12

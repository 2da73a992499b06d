"""One global Poisson draw a step; every record of it on exactly one rank."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import quietgrad as qg
from quietgrad.distributed import AllReduce
from tests.distributed.launch import launch, values

RECORDS, STEPS = 60, 25
NOISE = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)

Draws = list[list[int]]


def numbered() -> TensorDataset:
    return TensorDataset(torch.arange(float(RECORDS))[:, None], torch.zeros(RECORDS, dtype=torch.long))


def through_batches(seed: int | None) -> tuple[Draws, bool]:
    batches = qg.PoissonBatches(numbered(), rate=0.05, steps=STEPS, seed=seed)
    model = nn.Linear(1, 2)
    seen: Draws = []
    with qg.Privatizer(model, NOISE, batches, reducer=AllReduce()) as private:
        for batch in batches:
            seen.append([])
            for x, y in batch.split(2):
                seen[-1] += [] if private.independence.is_asking else [int(row) for row in x[:, 0]]
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
        return seen, private.covered


def through_a_loader() -> Draws:
    data = numbered()
    sampler = qg.PoissonSampler(RECORDS, rate=0.05, steps=STEPS, seed=11)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=qg.collate_possibly_empty(data))
    model = nn.Linear(1, 2)
    seen: Draws = []
    with qg.Privatizer(model, NOISE, sampler, reducer=AllReduce()) as private:
        for x, y in loader:
            seen.append([int(row) for row in x[:, 0]])
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
    return seen


@dataclass(frozen=True)
class Seen:
    """What one rank saw."""

    batches: Draws
    loader: Draws
    unseeded: Draws
    again: Draws
    covered: tuple[bool, bool]


def look(_: int) -> Seen:
    torch.manual_seed(0)
    (batches, seeded), (unseeded, fresh) = through_batches(11), through_batches(None)
    return Seen(batches, through_a_loader(), unseeded, through_batches(None)[0], (seeded, fresh))


@pytest.fixture(scope="module")
def ranks() -> list[Seen]:
    return values(launch(3, look))


def by_step(parts: list[Draws]) -> list[tuple[list[int], ...]]:
    return list(zip(*parts, strict=True))


def test_parts_are_disjoint_and_make_up_the_draw_of_one_process(ranks: list[Seen]) -> None:
    whole = list(qg.PoissonSampler(RECORDS, rate=0.05, steps=STEPS, seed=11))
    for parts in ([rank.batches for rank in ranks], [rank.loader for rank in ranks]):
        assert [sorted(chain(*step)) for step in by_step(parts)] == whole
        assert any(step[0] and not step[2] for step in by_step(parts))  # an empty part beside a full one


def test_unseeded_ranks_share_the_first_ones_entropy(ranks: list[Seen]) -> None:
    for step in by_step([rank.unseeded for rank in ranks]):
        rows = list(chain(*step))
        assert len(set(rows)) == len(rows)
        # Turn by turn the parts of one ascending draw give it back; draws of the ranks' own would not.
        turns = [part[turn : turn + 1] for turn in range(len(step[0])) for part in step]
        assert list(chain(*turns)) == sorted(rows)
    assert ranks[0].unseeded != ranks[0].again


def test_only_unseeded_draws_are_covered(ranks: list[Seen]) -> None:
    assert [rank.covered for rank in ranks] == [(False, True)] * 3

"""Several ranks release what one process releases: the same gradients, the same noise law, for every method."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import quietgrad as qg
from quietgrad._collective import Reducer, SingleProcess
from quietgrad._gradients.stages import Released
from quietgrad._noise.sources import HardenedSource, NoiseSource, SeededSource
from quietgrad._privatizer.research import Observer
from quietgrad._sampling.poisson import ReplayedSampler
from tests.cases.methods import METHODS, MethodCase, method_ids
from tests.cases.world import RECORDS, losses_of, privatizer, records, run, small_net
from tests.distributed.launch import launch, values

DRAWS = [list(range(9)), [3], [], [*range(5, 40, 3)]]
"""Parts of unequal size, empty on some ranks, empty on all."""
NOISY_STEPS = 6

Gradients = list[dict[str, Tensor]]


def trained(reducer: Reducer) -> dict[str, Gradients]:
    """The released gradients of every method without noise."""
    history = {}
    for case in METHODS:
        with privatizer(case.build(0.5).with_noise(0.0), DRAWS, reducer=reducer) as parts:
            history[case.name] = run(*parts, micro=4, lr=0.5)
    return history


def train_rank(_: int) -> dict[str, Gradients]:
    return trained(qg.distributed.AllReduce())


@pytest.fixture(scope="module")
def alone() -> dict[str, Gradients]:
    return trained(SingleProcess())


@pytest.fixture(scope="module", params=[2, 4])
def together(request: pytest.FixtureRequest) -> list[dict[str, Gradients]]:
    return values(launch(request.param, train_rank))


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_ranks_release_what_one_process_releases(
    case: MethodCase, alone: dict[str, Gradients], together: list[dict[str, Gradients]]
) -> None:
    assert any(float(g.abs().max()) > 1e-3 for g in alone[case.name][0].values())
    for rank in together:
        assert len(rank[case.name]) == len(DRAWS)
        for mine, reference in zip(rank[case.name], alone[case.name], strict=True):
            assert mine.keys() == reference.keys()
            for name in reference:
                assert torch.allclose(mine[name], reference[name], atol=1e-5, rtol=0), (case.name, name)


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_every_rank_sees_the_same_release(case: MethodCase, together: list[dict[str, Gradients]]) -> None:
    for rank in together[1:]:
        for mine, first in zip(rank[case.name], together[0][case.name], strict=True):
            assert all(torch.equal(mine[name], first[name]) for name in first)


def noisy_rank(rank: int) -> dict[str, Gradients]:
    """The same with noise, in which only rank 0's seed can show."""
    history = {}
    for case in METHODS:
        options: dict[str, Any] = {"reducer": qg.distributed.AllReduce(), "source": SeededSource(5 + rank)}
        with privatizer(case.build(0.5).with_noise(1.5), DRAWS, **options) as parts:
            history[case.name] = run(*parts, lr=0.1)
    return history


def noisy_alone(case: MethodCase, world: int) -> Gradients:
    """One process, whose micro-batches are what the ranks would have."""
    model, data, sampler = small_net(), records(), ReplayedSampler(RECORDS, DRAWS, rate=0.25)
    options: dict[str, Any] = {"noise_source": SeededSource(5), "deterministic": True, "public_seed": 7}
    history = []
    with qg.Privatizer(model, case.build(0.5).with_noise(1.5), sampler, **options) as private:
        for rows in sampler:
            for rank in range(world):
                if part := rows[rank::world]:
                    private.backward(losses_of(model, *data[part]))
            private.release()
            history.append(
                {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
            )
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.sub_(0.1 * history[-1][name])
    return history


@pytest.fixture(scope="module", params=[2, 4])
def noisy(request: pytest.FixtureRequest) -> list[dict[str, Gradients]]:
    return values(launch(request.param, noisy_rank))


@pytest.mark.parametrize("case", METHODS, ids=method_ids)
def test_ranks_release_the_very_bits_of_one_process(
    case: MethodCase, noisy: list[dict[str, Gradients]]
) -> None:
    """The same draw, the same noise, the same micro-batches: integers add up to the same sum."""
    reference = noisy_alone(case, len(noisy))
    for rank in noisy:
        for mine, expected in zip(rank[case.name], reference, strict=True):
            assert mine.keys() == expected.keys()
            for name in expected:
                assert torch.equal(mine[name], expected[name]), (case.name, name)


class Pooled(Observer):
    """All coordinates of each release, in units of what the event claims."""

    def __init__(self, claimed: list[float]) -> None:
        self.claimed = claimed
        self.draws: list[list[Tensor]] = [[] for _ in claimed]

    def step(self, step: int, released: list[Released], update: Any) -> None:
        for pool, part, std in zip(self.draws, released, self.claimed, strict=True):
            pool.append(torch.cat([block.flatten().double() for block in part.blocks.values()]) / std)


def noise_rank(rank: int) -> dict[str, list[Tensor]]:
    pools = {case.name: pooled(case, SeededSource(100 + rank)) for case in METHODS}
    return {**pools, "hardened": pooled(METHODS[0], HardenedSource())}


def pooled(case: MethodCase, source: NoiseSource) -> list[Tensor]:
    mechanism = case.build(0.5).with_noise(1.5)
    claimed = [1.5 / math.sqrt(r.share) * r.clip.sensitivity(0) / 10 for r in mechanism.releases]
    observer = Pooled(claimed)
    options: dict[str, Any] = {"reducer": qg.distributed.AllReduce(), "research": True}
    with privatizer(mechanism, [[]] * NOISY_STEPS, source=source, **options) as parts:
        parts[0].watch(observer)
        run(*parts)
    return [torch.cat(draws) for draws in observer.draws]


@pytest.fixture(scope="module")
def noise() -> list[dict[str, list[Tensor]]]:
    return values(launch(4, noise_rank))


@pytest.mark.parametrize("name", [*(case.name for case in METHODS), "hardened"])
def test_the_ranks_noise_adds_up_to_what_the_event_claims(
    name: str, noise: list[dict[str, list[Tensor]]]
) -> None:
    for index, pool in enumerate(noise[0][name]):
        drawn = pool[pool != 0]  # a selection zeroes what it does not release
        assert len(drawn) >= NOISY_STEPS
        assert float(drawn.square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(drawn)))
        assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4
        assert all(torch.equal(pool, rank[name][index]) for rank in noise)

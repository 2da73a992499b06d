"""Several ranks release what one process releases: the same gradients, the same noise law, for every method."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
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
from tests.cases.methods import BY_FAMILY, FAMILIES, METHODS, MethodCase
from tests.cases.world import RECORDS, losses_of, privatizer, records, run, small_net
from tests.distributed.launch import launch, values

DRAWS = [list(range(9)), [3], [], [*range(5, 40, 3)]]
"""Parts of unequal size, empty on some ranks, empty on all."""
NOISY_STEPS = 6

Gradients = list[dict[str, Tensor]]


def group(families: bool) -> list[MethodCase]:
    """The methods that share processes: those of `FAMILIES`, or all others."""
    return [case for case in METHODS if (case.name in FAMILIES) == families]


@functools.cache
def ranks(world: int, function: Callable[..., Any], families: bool) -> list[dict[str, Any]]:
    """Run a group of methods on every rank, once: processes take seconds to start."""
    return values(launch(world, function, families))


def trained(families: bool, reducer: Reducer) -> dict[str, Gradients]:
    """Train every method of a group without noise; the released gradients."""
    history = {}
    for case in group(families):
        with privatizer(case.build(0.5).with_noise(0.0), DRAWS, reducer=reducer) as parts:
            history[case.name] = run(*parts, micro=4, lr=0.5)
    return history


def train_rank(_: int, families: bool) -> dict[str, Gradients]:
    return trained(families, qg.distributed.AllReduce())


@functools.cache
def alone(families: bool) -> dict[str, Gradients]:
    return trained(families, SingleProcess())


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", BY_FAMILY)
def test_ranks_release_what_one_process_releases(case: MethodCase, world: int) -> None:
    families = case.name in FAMILIES
    one = alone(families)[case.name]
    assert any(float(g.abs().max()) > 1e-3 for g in one[0].values())
    first, *others = (rank[case.name] for rank in ranks(world, train_rank, families))
    assert len(first) == len(DRAWS)
    for mine, reference in zip(first, one, strict=True):
        assert mine.keys() == reference.keys()
        for name in reference:
            assert torch.allclose(mine[name], reference[name], atol=1e-5, rtol=0), (case.name, name)
    for rank in others:  # every rank sees the same release
        for mine, reference in zip(rank, first, strict=True):
            assert mine.keys() == reference.keys()
            assert all(torch.equal(mine[name], reference[name]) for name in reference)


def noisy_rank(rank: int, families: bool) -> dict[str, Gradients]:
    """The same with noise, in which only rank 0's seed can show."""
    history = {}
    for case in group(families):
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


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", BY_FAMILY)
def test_ranks_release_the_very_bits_of_one_process(case: MethodCase, world: int) -> None:
    """The same draw, the same noise, the same micro-batches: integers add up to the same sum."""
    reference = noisy_alone(case, world)
    for rank in ranks(world, noisy_rank, case.name in FAMILIES):
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


def noise_rank(rank: int, families: bool) -> dict[str, list[Tensor]]:
    pools = {case.name: pooled(case, SeededSource(100 + rank)) for case in group(families)}
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


@pytest.mark.parametrize("case", BY_FAMILY)
def test_the_ranks_noise_adds_up_to_what_the_event_claims(case: MethodCase) -> None:
    check_noise(case.name, ranks(4, noise_rank, case.name in FAMILIES))


def test_the_ranks_hardened_noise_adds_up_to_what_the_event_claims() -> None:
    check_noise("hardened", ranks(4, noise_rank, True))


def check_noise(name: str, noise: list[dict[str, list[Tensor]]]) -> None:
    for index, pool in enumerate(noise[0][name]):
        drawn = pool[pool != 0]  # a selection zeroes what it does not release
        assert len(drawn) >= NOISY_STEPS
        assert float(drawn.square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(drawn)))
        assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-6
        assert all(torch.equal(pool, rank[name][index]) for rank in noise)

"""Law 4: the noise that is released has the std that the event claims, and is fresh every time."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._noise.sources import EntropySource, SeededSource
from quietgrad._privatizer.research import Observer
from tests.cases.methods import BY_FAMILY, MethodCase
from tests.cases.world import grad_of, privatizer, run

STEPS = 120


class Recording(Observer):
    def __init__(self) -> None:
        self.steps: list[list[Released]] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.steps.append(released)


def flat(released: Released) -> Tensor:
    return torch.cat([block.flatten().double() for block in released.blocks.values()])


@functools.cache
def pure_noise(case: MethodCase) -> list[list[Released]]:
    """Release empty batches: the encoded sum is zero, so what comes out is the noise."""
    observer = Recording()
    with privatizer(case.build(0.5).with_noise(1.5), [[]] * STEPS, research=True) as (
        private,
        batches,
        model,
    ):
        private.watch(observer)
        run(private, batches, model)
    return observer.steps


@pytest.mark.parametrize("case", BY_FAMILY)
def test_std_and_shape_are_what_the_event_claims(case: MethodCase) -> None:
    mechanism = case.build(0.5).with_noise(1.5)
    divisor = 0.25 * 40
    for index, release in enumerate(mechanism.releases):
        claimed = 1.5 / math.sqrt(release.share) * release.clip.sensitivity(0) / divisor
        draws = torch.cat([flat(step[index]) for step in pure_noise(case)]) / claimed
        drawn = draws[draws != 0]  # a selection zeroes what it does not release
        assert len(drawn) >= STEPS
        # Mean square of m normals: 1 ± 5·√(2/m) fails by chance less than once in a million.
        assert float(drawn.square().mean()) == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(drawn)))
        assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4


@pytest.mark.parametrize("case", BY_FAMILY)
def test_every_coordinate_gets_the_same_std(case: MethodCase) -> None:
    for index in range(len(case.build(0.5).releases)):
        history = [flat(step[index]) for step in pure_noise(case)]
        if len({len(row) for row in history}) > 1 or any(bool((row == 0).any()) for row in history):
            continue  # the space changes from step to step; the pooled test above covers it
        squares = torch.stack(history).square().sum(0) / pure_noise(case)[0][index].std ** 2
        tail = stats.chi2(STEPS).sf(squares.numpy())
        assert tail.min() > 1e-3 / len(squares)
        assert (1 - tail).min() > 1e-3 / len(squares)


@pytest.mark.parametrize("case", BY_FAMILY)
def test_no_correlation_across_steps(case: MethodCase) -> None:
    for index in range(len(case.build(0.5).releases)):
        history = [flat(step[index]) / step[index].std for step in pure_noise(case)]
        products = torch.cat([a[: len(b)] * b[: len(a)] for a, b in itertools.pairwise(history)])
        # Products of independent normals have mean 0 and variance 1; a reused draw has mean 1.
        assert abs(float(products.mean())) < 5 / math.sqrt(len(products))


@pytest.mark.parametrize("case", BY_FAMILY)
def test_noise_is_drawn_once_per_logical_step(case: MethodCase) -> None:
    def released(micro: int) -> list[dict[str, Tensor]]:
        with privatizer(case.build(0.5).with_noise(1.5), [list(range(12)), [3, 4]]) as (
            private,
            batches,
            model,
        ):
            return run(private, batches, model, micro=micro)

    for whole, split in zip(released(64), released(5), strict=True):
        for name in whole:
            assert torch.allclose(whole[name], split[name], atol=1e-5), name


def test_draws_differ_between_runs_and_layers() -> None:
    a, b = EntropySource().integers(1000).double(), EntropySource().integers(1000).double()
    assert abs(float(a @ b / (a.norm() * b.norm()))) < 0.2
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    model = torch.nn.Sequential(torch.nn.Linear(9, 30), torch.nn.Linear(30, 9))
    with privatizer(mechanism, [[]], model=model) as (private, batches, _):
        next(iter(batches))
        private.release()
    first, second = (grad_of(model.get_parameter(f"{layer}.weight")).flatten() for layer in (0, 1))
    assert abs(float(first @ second / (first.norm() * second.norm()))) < 0.35


@pytest.mark.slow
def test_tails_reach_beyond_what_float32_generators_give() -> None:
    """float32 generators stop at 5.77; of 5·10⁸ true normals about four lie beyond."""
    source = SeededSource(3)
    beyond = sum(int((source.integers(10_000_000).abs() > 5.77 * source.std).sum()) for _ in range(50))
    assert 1 <= beyond <= 12


def test_torch_seed_does_not_reach_the_noise() -> None:
    torch.manual_seed(0)
    a = EntropySource().integers(10)
    torch.manual_seed(0)
    np.random.seed(0)
    assert not torch.equal(a, EntropySource().integers(10))

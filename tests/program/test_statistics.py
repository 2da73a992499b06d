"""Laws 2–4 for statistics: bounded by one record, equal up to the clipped sum, noise as claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._mechanism.clipping import MARGIN, FlatClip
from quietgrad._noise.sources import NoiseSource, SeededSource
from quietgrad._program.statistics import (
    Counts,
    DiagonalMoments,
    Histograms,
    KroneckerMoments,
    Mean,
    SecondMoments,
    Statistic,
)
from quietgrad.accounting import gaussian_precision

RECORDS = 30


@dataclass(frozen=True)
class Case:
    """A statistic with records that suit it, and one record that suits nobody."""

    statistic: Statistic
    shape: tuple[int, ...]
    labels: bool = False

    def values(self) -> Tensor:
        rng = torch.Generator().manual_seed(1)
        if self.labels:
            return torch.randint(3, (RECORDS,), generator=rng)
        return torch.randn(RECORDS, *self.shape, generator=rng)


CASES = {
    "mean": Case(Mean(), (5,)),
    "long mean": Case(Mean(3.0), (5,)),
    "second moments": Case(SecondMoments(), (5,)),
    "diagonal": Case(DiagonalMoments(), (5,)),
    "kronecker": Case(KroneckerMoments(), (4, 3)),
    "counts": Case(Counts(3), (), labels=True),
    "histograms": Case(Histograms((-2.0, -1.0, 0.0, 1.0, 2.0), 5), (5,)),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def flat(blocks: Blocks) -> Tensor:
    return torch.cat([block.flatten().double() for block in blocks.values()])


def clipped_sum(statistic: Statistic, values: Tensor) -> Tensor:
    return flat(FlatClip(statistic.bound)(statistic.rows(values), 0).blocks)


def moved_by(statistic: Statistic, values: Tensor) -> float:
    """How far the first record moves the sum."""
    return float((clipped_sum(statistic, values) - clipped_sum(statistic, values[1:])).norm())


@each_case
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6, math.nan, math.inf])
def test_one_record_moves_the_sum_by_at_most_the_bound(case: Case, scale: float) -> None:
    values = case.values()
    if not case.labels:
        values[0] = scale * (values[0] if math.isfinite(scale) else torch.ones(case.shape))
    assert moved_by(case.statistic, values) <= case.statistic.bound


@pytest.mark.parametrize("case", [CASES["mean"], CASES["second moments"], CASES["kronecker"]])
def test_the_bound_is_reached(case: Case) -> None:
    values = case.values()
    values[0] = 0.0
    values[0].view(-1)[0] = 1.0
    assert moved_by(case.statistic, values) == pytest.approx((1 - MARGIN) * case.statistic.bound, rel=1e-4)


def test_a_statistic_without_its_clip_would_be_seen() -> None:
    """Unit length forgotten and no clip: the law's own measure finds it."""
    values = CASES["second moments"].values()
    values[0] *= 100
    whole, rest = (
        SecondMoments().rows(part).weighted_sum(torch.ones(len(part))) for part in (values, values[1:])
    )
    assert float((flat(whole) - flat(rest)).norm()) > SecondMoments().bound


def released(
    statistic: Statistic, values: Tensor, source: NoiseSource, noise: float = 2.0, share: float = 0.25
) -> tuple[Blocks, qg.Statistics]:
    program = qg.Program(
        training=qg.methods.dp_sgd(),
        statistics={"it": qg.StatisticRelease(statistic=statistic, share=share)},
    ).with_noise(noise)
    sampler = qg.PoissonSampler(len(values), rate=1.0, steps=9)
    statistics = qg.Statistics(program, sampler, noise_source=source)
    return statistics.release("it", values).blocks, statistics


@each_case
def test_neighbours_differ_by_the_clipped_sums_and_nothing_else(case: Case) -> None:
    values, neighbour = case.values(), case.values()
    neighbour[0] = neighbour[1] if case.labels else 7.0
    (a, first), (b, second) = (released(case.statistic, v, SeededSource(4)) for v in (values, neighbour))
    moved = (clipped_sum(case.statistic, values) - clipped_sum(case.statistic, neighbour)) / RECORDS
    torch.testing.assert_close(flat(a) - flat(b), moved, atol=1e-5, rtol=1e-4)
    assert first.ledger.phases == second.ledger.phases


@each_case
def test_the_noise_is_what_the_ledger_says(case: Case) -> None:
    values = case.values()
    draws = []
    for seed in range(300):
        blocks, statistics = released(case.statistic, values, SeededSource(seed))
        draws.append(flat(blocks) * RECORDS - clipped_sum(case.statistic, values))
    (phase,) = statistics.ledger.phases
    # share ¼ against training's ¾ over 9 steps at rate one: σ·√(3/9)
    multiplier = gaussian_precision(phase.event) ** -0.5
    assert multiplier == pytest.approx(2.0 * math.sqrt(3 / 9))
    expected = multiplier * case.statistic.bound
    assert float(torch.cat(draws).std()) == pytest.approx(expected, rel=0.05)


def test_second_moments_are_the_matrix() -> None:
    values = torch.nn.functional.normalize(CASES["second moments"].values())
    blocks, _ = released(SecondMoments(), values, SeededSource(0), noise=0.0)
    torch.testing.assert_close(
        blocks["second"], (1 - MARGIN) * values.T @ values / RECORDS, rtol=2e-4, atol=1e-5
    )


def test_kronecker_moments_are_those_of_channels_and_positions() -> None:
    values = CASES["kronecker"].values()
    values = values / values.flatten(1).norm(dim=1)[:, None, None]
    blocks, _ = released(KroneckerMoments(), values, SeededSource(0), noise=0.0)
    channels = torch.einsum("ncp,ndp->cd", values, values) / RECORDS
    positions = torch.einsum("ncp,ncq->pq", values, values) / RECORDS
    torch.testing.assert_close(blocks["channels"], channels, rtol=2e-4, atol=1e-5)
    torch.testing.assert_close(blocks["positions"], positions, rtol=2e-4, atol=1e-5)


def test_quantiles_of_a_released_histogram() -> None:
    values = torch.linspace(-2, 2, 401)[:, None].expand(-1, 2).contiguous()
    statistic = Histograms(tuple(torch.linspace(-2, 2, 41).tolist()), 2)
    blocks, _ = released(statistic, values, SeededSource(0), noise=0.0)
    found = statistic.quantiles(blocks["bins"], (0.25, 0.5))
    torch.testing.assert_close(found, torch.tensor([[-1.0, -1.0], [0.0, 0.0]]).double(), atol=0.11, rtol=0)


def test_the_support_of_a_released_histogram_is_what_stands_out_of_the_noise() -> None:
    statistic = Histograms((-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0), 2)
    values = torch.stack([torch.linspace(-1.9, 0.5, 400), torch.full((400,), 3.0)], 1)
    blocks, _ = released(statistic, values, SeededSource(0), noise=0.1)
    lower, upper = statistic.support(blocks["bins"], std=1e-3)
    assert lower.tolist() == [-2.0, 2.0]
    assert upper.tolist() == [1.0, 4.0]
    lower, upper = statistic.support(torch.zeros(12), std=1.0)
    assert (lower.tolist(), upper.tolist()) == ([-1.0, -1.0], [1.0, 1.0])

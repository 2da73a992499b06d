"""The Mallows selector draws from its own distribution, exactly, and is charged for it."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

import quietgrad as qg
from quietgrad._collective import SingleProcess
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._noise.base import NoiseDraw, NoiseState
from quietgrad._noise.sources import SeededSource
from quietgrad.accounting.events import GaussianEvent, JointEvent
from quietgrad.methods.gip import MallowsSelection
from quietgrad.methods.gip.noise import SelectedGaussian
from quietgrad.methods.gip.selection import Grouping, swap_limits
from tests.methods.mallows import equation_11

DRAWS = 100_000


def drawn(values: torch.Tensor, size: int, keep: float, theta: float, seed: int = 0) -> torch.Tensor:
    """DRAWS independent sets for one group of values."""
    grouping = Grouping(coordinates=size * DRAWS, group_size=size)
    bits = SeededSource(seed).bits(grouping.draws)
    sets = grouping.select(values.repeat(DRAWS), theta=theta, keep=keep, bits=bits)
    return sets.view(DRAWS, size)


def goodness(counts: np.ndarray, chances: np.ndarray) -> float:
    """p-value of a chi-square test, rare outcomes pooled."""
    order = np.argsort(chances)
    expected, seen = chances[order] * DRAWS, counts[order]
    cut = int(np.searchsorted(np.cumsum(expected), 10)) + 1
    expected = np.append(expected[:cut].sum(), expected[cut:])
    seen = np.append(seen[:cut].sum(), seen[cut:])
    return float(stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize(
    ("size", "kept", "theta"),
    [
        (8, 3, 0.0),
        (8, 3, 0.4),
        (10, 7, 0.8),
        (16, 2, 1.5),
        (64, 6, 0.3),
        (64, 32, 0.05),
        (5, 4, 0.2),
        (2, 1, 0.5),
    ],
)
def test_the_distance_follows_equation_11(size: int, kept: int, theta: float) -> None:
    values = torch.arange(size).float() * (-1.0) ** torch.arange(size)  # magnitudes rise with the index
    sets = drawn(values, size, kept / size, theta)
    assert bool((sets.sum(1) == kept).all())
    swaps = kept - sets[:, size - kept :].sum(1)
    counts = np.bincount(swaps.numpy(), minlength=min(kept, size - kept) + 1)
    assert goodness(counts, equation_11(size, kept, theta)) > 1e-3


def test_every_set_has_the_probability_of_the_mallows_model() -> None:
    """Not only the distance: all sets of a distance are equally likely."""
    size, kept, theta = 6, 2, 0.3
    sets = drawn(torch.arange(6.0), size, kept / size, theta, seed=3)
    codes = (sets.long() * 2 ** torch.arange(size)).sum(1).numpy()
    possible = [sum(2**i for i in chosen) for chosen in itertools.combinations(range(size), kept)]
    top = {4, 5}
    distance = [len(top.symmetric_difference(chosen)) for chosen in itertools.combinations(range(size), kept)]
    chances = np.exp(-theta * np.array(distance))
    counts = np.array([int((codes == code).sum()) for code in possible])
    assert counts.sum() == DRAWS
    assert goodness(counts, chances / chances.sum()) > 1e-3


def test_without_theta_the_choice_is_uniform() -> None:
    """random-k: every set of k is equally likely, whatever the values are."""
    sets = drawn(torch.tensor([0.0, 0.0, 0.0, 100.0, 5.0]), 5, 0.4, 0.0, seed=4)
    codes = (sets.long() * 2 ** torch.arange(5)).sum(1)
    counts = np.array([int(count) for count in torch.bincount(codes) if count])
    assert len(counts) == 10
    assert goodness(counts, np.full(10, 0.1)) > 1e-3


def test_a_large_theta_is_the_true_top_k() -> None:
    values = torch.tensor([0.1, -3.0, 2.0, 0.0, -1.0])
    assert drawn(values, 5, 0.4, 40.0)[:100].tolist() == [[False, True, True, False, False]] * 100


def test_groups_are_drawn_independently() -> None:
    sets = drawn(torch.arange(4.0), 4, 0.5, 0.2, seed=6)
    first = sets[:, 3].double()
    correlation = np.corrcoef(first[:-1], first[1:])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(DRAWS)


def test_limits_of_the_swaps_are_exact_to_the_last_bit() -> None:
    """Against exact rationals, at a θ for which e^{−2θ} is one."""
    size, kept = 40, 13
    theta = math.log(2) / 2
    weights = [Fraction(math.comb(kept, i) * math.comb(size - kept, i), 2**i) for i in range(kept + 1)]
    exact = [int(sum(weights[: i + 1]) / sum(weights) * 2**63) for i in range(kept)]
    # θ itself is rounded to float64, a relative 2⁻⁵³.
    assert swap_limits(size, kept, theta).tolist() == pytest.approx(exact, rel=1e-15)
    exact = [int(Fraction(math.comb(kept, i) * math.comb(size - kept, i))) for i in range(kept + 1)]
    uniform = [sum(exact[: i + 1]) * 2**63 // math.comb(size, kept) for i in range(kept)]
    assert swap_limits(size, kept, 0.0).tolist() == uniform


def test_limits_survive_where_binomials_overflow() -> None:
    limits = swap_limits(100_000, 50_000, 1e-6).double() * 2.0**-63
    assert bool((limits.diff() >= 0).all())
    # Nearly uniform: the overlap of two random halves.
    assert float((1 - limits).sum()) == pytest.approx(25_000, rel=1e-3)


def test_what_is_left_over_is_a_group_of_its_true_size() -> None:
    grouping = Grouping(coordinates=21, group_size=8)
    assert grouping.shapes == ((2, 8), (1, 5))
    assert [(s.group_size, s.kept, s.groups) for s in grouping.selections(0.1, 0.25)] == [
        (8, 2, 2),
        (5, 1, 1),
    ]
    assert Grouping(coordinates=16, group_size=8).shapes == ((2, 8),)
    assert Grouping(coordinates=3, group_size=8).shapes == ((1, 3),)
    chosen = grouping.select(
        torch.arange(21.0), theta=50.0, keep=0.25, bits=SeededSource(0).bits(grouping.draws)
    )
    assert chosen.nonzero().flatten().tolist() == [6, 7, 14, 15, 20]


def released(keep: float, theta: float, std: float, source: SeededSource) -> Released:
    noise = SelectedGaussian(grouping=Grouping(coordinates=2000, group_size=64), theta=theta, keep=keep)
    total = ClippedSum(blocks={"a": torch.zeros(30, 40), "b": torch.zeros(800)}, sensitivity=2.0)
    draw = NoiseDraw(std=std, divisor=10.0, source=source, reducer=SingleProcess(), step=0)
    return noise.release(total, draw, NoiseState())[0]


def test_what_is_not_selected_is_exactly_zero_and_the_rest_has_the_claimed_noise() -> None:
    part = released(0.25, 0.1, 3.0, SeededSource(1))
    values = torch.cat([block.flatten() for block in part.blocks.values()])
    kept = values[values != 0]
    assert part.blocks["a"].shape == (30, 40)
    assert len(kept) == sum(
        s.kept * s.groups for s in Grouping(coordinates=2000, group_size=64).selections(0.1, 0.25)
    )
    assert part.std == pytest.approx(0.3, rel=1e-5)
    assert part.std / part.sensitivity == pytest.approx(1.5, rel=1e-12)
    assert float(kept.std()) == pytest.approx(0.3, rel=5 / math.sqrt(2 * len(kept)))


def test_noise_and_choice_do_not_share_random_numbers() -> None:
    """Members of low key are swapped out, others of low key in: keys reused as noise would lean up or down."""
    noise = SelectedGaussian(grouping=Grouping(coordinates=2000, group_size=50), theta=0.0, keep=0.5)
    large = torch.arange(2000) % 50 < 25
    total = ClippedSum(blocks={"a": torch.where(large, 1e-3, 0.0)}, sensitivity=1.0)
    members, others = [], []
    for seed in range(20):
        draw = NoiseDraw(std=1.0, divisor=1.0, source=SeededSource(seed), reducer=SingleProcess(), step=0)
        part = noise.release(total, draw, NoiseState())[0].blocks["a"]
        members.append(part[(part != 0) & large])
        others.append(part[(part != 0) & ~large])
    for group in (torch.cat(members).double(), torch.cat(others).double()):
        assert abs(float(group.mean())) < 5 / math.sqrt(len(group))
        assert stats.kstest(group.numpy(), "norm").pvalue > 1e-3


def test_the_event_is_joint_and_calibration_meets_the_budget_with_it() -> None:
    class Batches:
        rate, steps = 0.05, 60

    mechanism = qg.methods.gip(1000, Batches(), keep=0.1, index_share=0.5)
    calibrated = qg.calibrate(mechanism, Batches(), epsilon=2.0, delta=1e-5)
    event = calibrated.event(0)
    assert isinstance(event, JointEvent)
    assert calibrated.noise_multiplier is not None
    assert event.gaussian == GaussianEvent(noise_multiplier=calibrated.noise_multiplier)
    selections = [s for s in event.selections if isinstance(s, MallowsSelection)]
    assert [(s.group_size, s.kept, s.groups) for s in selections] == [(256, 26, 3), (232, 23, 1)]
    plain = qg.calibrate(qg.methods.dp_sgd(), Batches(), epsilon=2.0, delta=1e-5)
    assert plain.noise_multiplier is not None
    # Half of ε spent on indices must show in σ: a selection that came for free would leave it as it is.
    assert calibrated.noise_multiplier > 1.05 * plain.noise_multiplier

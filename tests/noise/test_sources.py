"""The generators behind privacy noise: right distribution, true tails, fresh keys; the hardened one exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from quietgrad.collective import SingleProcess
from quietgrad.gradients.stages import ClippedSum, Released
from quietgrad.noise import discrete_gaussian as dg
from quietgrad.noise import gaussian as noise
from quietgrad.noise.base import NoiseDraw
from quietgrad.noise.gaussian import Gaussian, add_normals
from quietgrad.noise.normals import PAIRS, BoxMuller
from quietgrad.noise.sources import PART, EntropySource, HardenedSource, SeededSource, as_source


def bulk(count: int, seed: int = 0) -> np.ndarray:
    out = np.empty(count, np.float32)
    BoxMuller(np.random.Generator(np.random.PCG64DXSM(seed))).fill(out)
    return out


def test_bulk_normals_are_normal() -> None:
    draws = bulk(400_000).astype(np.float64)
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws.mean()) < 5 / math.sqrt(len(draws))
    assert abs(draws.var() - 1) < 5 * math.sqrt(2 / len(draws))
    assert abs(stats.kurtosis(draws)) < 5 * math.sqrt(24 / len(draws))


def test_the_two_normals_of_a_pair_are_independent() -> None:
    first, second = np.split(bulk(200_000).astype(np.float64), 2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(len(first))
    assert abs(np.corrcoef(first**2, second**2)[0, 1]) < 5 / math.sqrt(len(first))


class Extreme(np.random.Generator):
    """Words whose radius is the largest there is, at the angle 0: all bits of v are 1, of what follows them 0."""

    def integers(self, *args: Any, **kwargs: object) -> np.ndarray:  # type: ignore[override]
        return np.full(args[2], 2**32 - 1 if args[1] == 2**64 else 0, np.uint64)


def test_tails_go_beyond_what_float32_uniforms_reach() -> None:
    out = np.empty(2, np.float32)
    BoxMuller(Extreme(np.random.PCG64DXSM(0))).fill(out)
    assert 9.4 < np.abs(out).max() < 9.5
    drawn = np.concatenate([bulk(4_000_000, seed) for seed in range(2)])
    assert (np.abs(drawn) > 4.5).mean() == pytest.approx(2 * stats.norm.sf(4.5), rel=0.4)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 2 * PAIRS - 1, 2 * PAIRS + 3])
def test_every_place_is_filled(count: int) -> None:
    out = np.full(count, np.nan, np.float32)
    BoxMuller(np.random.default_rng(0)).fill(out)
    assert np.isfinite(out).all()
    assert len(np.unique(out)) >= 0.999 * count  # float32 numbers coincide now and then


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_draws_are_never_given_twice(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    source = EntropySource()
    counts = (1000, 1000, 500, 2 * PART, 1000, 2 * PART + 1)
    drawn = torch.cat([source.normals_in(count, torch.float32).clone() for count in counts])
    assert len(drawn) == sum(counts)
    assert len(drawn.unique()) > 0.99 * len(drawn)  # float32 numbers coincide now and then
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-6
    assert source.normals_in(10, torch.float64).dtype == torch.float64


def test_two_sources_have_different_keys() -> None:
    assert not torch.equal(
        EntropySource().normals_in(50, torch.float32), EntropySource().normals_in(50, torch.float32)
    )


def test_noise_is_added_to_every_block_with_the_right_std() -> None:
    blocks = {"a": torch.full((300, 200), 5.0), "b": torch.zeros(40_000)}
    noisy = add_normals(blocks, 2.0, EntropySource())
    for name, block in blocks.items():
        drawn = (noisy[name] - block).flatten()
        assert abs(float(drawn.std()) - 2.0) < 0.05
        assert abs(float(drawn.mean())) < 0.05
    assert float(blocks["b"].abs().max()) == 0.0


def test_blocks_larger_than_what_is_noised_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "AT_ONCE", 1000)
    blocks = {
        "a": torch.zeros(70, 60).T,
        "b": torch.zeros(1),
        "c": torch.zeros(0),
        "d": torch.full((2999,), 5.0),
    }
    noisy = add_normals(blocks, 2.0, EntropySource())
    assert {name: block.shape for name, block in noisy.items()} == {n: b.shape for n, b in blocks.items()}
    drawn = torch.cat([(noisy[name] - block).flatten() for name, block in blocks.items()])
    assert len(drawn.unique()) > 0.99 * len(drawn), "every coordinate has noise of its own"
    assert abs(float(drawn.std()) - 2.0) < 0.12  # five standard deviations of 7,200 draws


# ---- the hardened source ------------------------------------------------------------------------------------


def test_the_discrete_gaussian_is_gaussian_at_its_width() -> None:
    draws = dg.discrete_gaussian(200_000)
    assert draws.dtype == np.int64
    assert stats.kstest(draws / dg.SIGMA, "norm").pvalue > 1e-3
    assert np.var(draws / dg.SIGMA) == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(draws)))


def test_a_narrow_discrete_gaussian_has_the_exact_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """At σ = 2 the probabilities can be counted; the code is the same but for the bits of the remainder."""
    monkeypatch.setattr(dg, "SIGMA", 2)
    monkeypatch.setattr(dg, "discrete_laplace", _laplace)
    draws = dg.discrete_gaussian(200_000)
    values = np.arange(-8, 9)
    expected = np.exp(-(values**2) / 8.0)
    observed = np.array([(draws == value).sum() for value in values])
    kept = expected / expected.sum() * len(draws) > 20
    scaled = expected[kept] / expected[kept].sum() * observed[kept].sum()
    assert stats.chisquare(observed[kept], scaled).pvalue > 1e-3


def _laplace(count: int) -> np.ndarray:
    """The sampler of the module for σ = 2."""
    found = np.empty(0, np.int64)
    while len(found) < count:
        drawn = dg.random_words(4 * count)
        remainder = (drawn >> np.uint64(63)).astype(np.int64)
        kept = dg.flips(remainder / 2)
        size = remainder[kept] + 2 * dg.geometric(int(kept.sum()))
        negative = (drawn[kept] & np.uint64(1)).astype(bool)
        signed = np.where(negative, -size, size)
        found = np.concatenate([found, signed[~(negative & (size == 0))]])
    return found[:count]


@pytest.mark.parametrize("x", [0.0, 0.1, 1.0, 3.0])
def test_coins_have_the_right_chance(x: float) -> None:
    n, chance = 100_000, math.exp(-x)
    heads = dg.flips(np.full(n, x)).mean()
    assert abs(heads - chance) <= 5 * math.sqrt(chance * (1 - chance) / n)


@pytest.mark.parametrize("x", [0.5, 1.0, 2.25])
def test_a_doubtful_coin_is_settled_by_exact_arithmetic(x: float) -> None:
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 60
        word = int((-Decimal(x)).exp() * 2**64)
    assert dg.settled(word - 1, x)
    assert not dg.settled(word + 1, x)


def test_doubtful_coins_are_the_ones_that_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def yes(bits: int, x: float) -> bool:
        asked.append((bits, x))
        return True

    word = np.uint64(int(math.exp(-1.0) * 2**64) >> 11 << 11)
    monkeypatch.setattr(dg, "random_words", lambda count: np.array([word, np.uint64(0)])[:count])
    monkeypatch.setattr(dg, "settled", yes)
    assert dg.flips(np.array([1.0, 1.0])).tolist() == [True, True]
    assert asked == [(int(word), 1.0)]


def release(std: float = 2.0, sensitivity: float = 1.0) -> tuple[ClippedSum, Released]:
    total = ClippedSum(blocks={"w": torch.linspace(-3, 3, 20_000)}, sensitivity=sensitivity)
    draw = NoiseDraw(std=std, divisor=4.0, source=HardenedSource(), reducer=SingleProcess(), step=0)
    return total, Gaussian().release(total, draw)


def test_the_hardened_release_pays_for_its_grid() -> None:
    total, released = release()
    widened = released.sensitivity * 4.0 / total.sensitivity
    grid = released.std * 4.0 / dg.SIGMA
    assert widened == pytest.approx(1 + grid * math.sqrt(20_000), rel=1e-6)
    assert widened >= 1 + grid * math.sqrt(20_000)
    assert released.std / released.sensitivity == pytest.approx(2.0)
    noise = 4.0 * released.blocks["w"].double() - total.blocks["w"].double()
    assert float(noise.std()) == pytest.approx(2.0 * widened, rel=0.03)


def test_hardened_values_lie_on_the_grid() -> None:
    source, grid = HardenedSource(), 2.0**-22
    noisy = source.on_grid({"w": torch.linspace(0, 1, 50, dtype=torch.float64)}, 1.0)["w"]
    assert torch.equal((noisy / grid).round() * grid, noisy)


def test_too_many_coordinates_for_the_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="hardened source cannot serve"):
        HardenedSource().widening(10**13, 2.0)


def test_sources_by_name() -> None:
    assert isinstance(as_source("hardened"), HardenedSource)
    assert isinstance(as_source("default"), EntropySource)
    seeded = SeededSource(1)
    assert as_source(seeded) is seeded
    with pytest.raises(ValueError, match="'default', 'hardened'"):
        as_source("fast")

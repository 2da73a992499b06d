"""Where noise comes from: fresh for every draw, in every copy, process and thread; the hardened source exact."""

from __future__ import annotations

import copy
import math
import multiprocessing
import os
import pickle
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from scipy import stats

from quietgrad._noise import discrete_gaussian as dg
from quietgrad._noise.sources import (
    DeviceSource,
    EntropySource,
    HardenedSource,
    NoiseSource,
    SeededSource,
    as_source,
)

PRIVATE = [EntropySource, DeviceSource, HardenedSource]


def drawn(source: NoiseSource) -> list[list[int]]:
    return [source.integers(20).tolist(), source.bits(20).tolist()]


def test_sources_by_name() -> None:
    assert isinstance(as_source("hardened"), HardenedSource)
    assert isinstance(as_source("default"), EntropySource)
    seeded = SeededSource(1)
    assert as_source(seeded) is seeded
    with pytest.raises(ValueError, match="'default', 'device', 'hardened'"):
        as_source("fast")


@pytest.mark.parametrize("source", [EntropySource(), DeviceSource(), HardenedSource(), SeededSource(4)])
def test_integers_have_the_stated_std_and_bits_are_fair(source: NoiseSource) -> None:
    draws = source.integers(100_000).double() / source.std
    assert stats.kstest(draws.numpy(), "norm").pvalue > 1e-6
    bits = source.bits(20_000)
    assert bits.dtype == torch.int64
    assert int(bits.min()) >= 0
    for bit in (0, 1, 31, 62):
        assert abs(float((bits >> bit & 1).double().mean()) - 0.5) < 5 / math.sqrt(4 * 20_000)


@pytest.mark.parametrize("kind", PRIVATE)
def test_no_draw_comes_twice(kind: type[NoiseSource]) -> None:
    source = kind()
    draws = [*drawn(source), *drawn(source), *drawn(kind())]
    assert len({tuple(draw) for draw in draws}) == len(draws)
    assert kind.private


@pytest.mark.parametrize("kind", PRIVATE)
def test_copies_draw_afresh(kind: type[NoiseSource]) -> None:
    source = kind()
    source.integers(10)
    copies = [source, copy.copy(source), copy.deepcopy(source), pickle.loads(pickle.dumps(source))]
    draws = [draw for each in copies for draw in drawn(each)]
    assert len({tuple(draw) for draw in draws}) == len(draws)


@pytest.mark.parametrize("kind", PRIVATE)
def test_a_forked_process_draws_afresh(kind: type[NoiseSource]) -> None:
    """By os.fork, past every hook of Python's libraries: child and parent share whatever they share."""
    source = kind()
    source.integers(10)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, pickle.dumps(drawn(source)))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    mine = drawn(source)
    assert all(a != b for a, b in zip(mine, theirs, strict=True))


def test_forked_workers_of_a_pool_draw_afresh() -> None:
    source = EntropySource()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        draws = pool.map(_five, [source] * 8)
    draws.append(_five(source))
    assert len(set(draws)) == len(draws)


def _five(source: NoiseSource) -> tuple[int, ...]:
    return tuple(source.integers(5).tolist())


def test_a_seed_gives_the_same_draws_again() -> None:
    assert drawn(SeededSource(3)) == drawn(SeededSource(3))
    assert drawn(SeededSource(3)) != drawn(SeededSource(4))
    seeded = SeededSource(3)
    assert drawn(seeded) != drawn(seeded)
    assert not SeededSource.private


# ---- the hardened source ------------------------------------------------------------------------------------


def test_the_discrete_gaussian_is_gaussian_at_its_width() -> None:
    draws = dg.discrete_gaussian(200_000)
    assert draws.dtype == np.int64
    assert stats.kstest(draws / dg.SIGMA, "norm").pvalue > 1e-6
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
    assert stats.chisquare(observed[kept], scaled).pvalue > 1e-6


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
def test_a_doubtful_coin_is_decided_by_exact_arithmetic(x: float) -> None:
    with localcontext() as context:
        context.prec = 60
        word = int((-Decimal(x)).exp() * 2**64)
    assert dg.decide_exactly(word - 1, x)
    assert not dg.decide_exactly(word + 1, x)


def test_doubtful_coins_are_the_ones_that_are_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float]] = []

    def yes(bits: int, x: float) -> bool:
        asked.append((bits, x))
        return True

    word = np.uint64(int(math.exp(-1.0) * 2**64) >> 11 << 11)
    monkeypatch.setattr(dg, "random_words", lambda count: np.array([word, np.uint64(0)])[:count])
    monkeypatch.setattr(dg, "decide_exactly", yes)
    assert dg.flips(np.array([1.0, 1.0])).tolist() == [True, True]
    assert asked == [(int(word), 1.0)]

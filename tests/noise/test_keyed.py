"""Noise by key and index: ChaCha20's bits, the rounded Gaussian's distribution, any slice drawn alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

import quietgrad as qg
from quietgrad._kernels.keyed_draws import EXACT, TILE, Unfinished
from quietgrad._noise import keyed
from quietgrad._noise.keyed import AT_ONCE, IndexWords, chacha_blocks, fill_keyed, finish_trials
from quietgrad._noise.pieces import PER_STD, REACH, SLOTS, cut
from quietgrad._noise.rounded_gaussian import default
from quietgrad._noise.sources import DeviceSource, EntropySource, as_source
from tests.cases.world import privatizer, run
from tests.noise.vectors import VECTORS, Vector

KEY = bytes(range(1, 33))


def draw(count: int, first: int = 0, key: bytes = KEY) -> np.ndarray:
    out = torch.full((count,), 7, dtype=torch.int32)
    fill_keyed(out, key, first)
    return out.numpy()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_key_stream_is_that_of_rfc_8439(vector: Vector) -> None:
    words = chacha_blocks(vector.key, vector.stream, vector.block, 1)
    assert words.astype("<u4").tobytes().hex() == vector.made


def test_blocks_count_beyond_32_bits() -> None:
    together = chacha_blocks(KEY, 3, 2**32 - 2, 5)
    alone = [chacha_blocks(KEY, 3, 2**32 - 2 + i, 1)[0] for i in range(5)]
    assert np.array_equal(together, np.stack(alone))
    assert len(np.unique(together)) == together.size


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 1), (1, 5), (127, 2), (1023, 2), (1024, 1024), (1500, 70_000), (5, 0), (AT_ONCE - 3, 7)],
)
def test_a_slice_drawn_alone_is_the_slice_of_the_whole(first: int, count: int) -> None:
    whole = draw(80_000)
    assert np.array_equal(draw(count, first), whole[first : first + count])


def test_every_index_has_bits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pair of words serves two coordinates, and none of another stream is used."""
    asked: list[tuple[int, int]] = []
    real = chacha_blocks

    def noted(key: bytes, stream: int, block: int, count: int) -> np.ndarray:
        asked.extend((stream, block + i) for i in range(count))
        return real(key, stream, block, count)

    monkeypatch.setattr(keyed, "chacha_blocks", noted)
    draw(20 * TILE)
    assert len(set(asked)) == len(asked)
    assert {stream for stream, _ in asked} <= {0, 1, 2, 3}
    # In a tile each of the 1024 pairs is used once: words that name their block and place.
    marks = np.arange(128 * 16, dtype=np.uint32).reshape(128, 16)
    monkeypatch.setattr(keyed, "chacha_blocks", lambda *_: marks)
    u, v = keyed._tent_words(KEY, 0, TILE)
    assert np.array_equal(v - u, np.ones(TILE))
    assert sorted(u) == list(range(0, 128 * 16, 2))
    assert u[:3].tolist() == [0, 16, 32], "neighbours take neighbouring blocks"


def test_exact_arithmetic_takes_bits_of_its_own_index_and_trial() -> None:
    words = IndexWords(KEY, index=5, trial=2)
    taken = np.concatenate([words.take(3), words.take(9)])
    blocks = [chacha_blocks(KEY, EXACT + (2 << 32) + c, 5, 1) for c in range(2)]
    assert np.array_equal(taken, np.concatenate(blocks).ravel().view(np.uint64)[:12])
    assert not np.intersect1d(taken, IndexWords(KEY, 6, 2).take(12)).size
    assert not np.intersect1d(taken, IndexWords(KEY, 5, 3).take(12)).size


def test_draws_are_normal() -> None:
    """Law 4 for one million indices; a fixed key, so that it cannot fail by chance."""
    draws = draw(1_000_000) / default().std
    n = len(draws)
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert abs(draws.mean()) < 4 / math.sqrt(n)
    assert abs(draws.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs(stats.kurtosis(draws)) < 4 * math.sqrt(24 / n)
    for lag in (1, 128, 1024):
        assert abs(np.mean(draws[lag:] * draws[:-lag])) < 4 / math.sqrt(n)
    assert stats.chisquare(np.bincount(draw(1_000_000) & 255, minlength=256)).pvalue > 1e-3


def tents_below(x: np.ndarray) -> np.ndarray:
    """The distribution function of points of tents: triangles on centres an eighth of a std apart."""
    pieces = cut(default().std)
    centres = np.arange(-REACH * PER_STD, REACH * PER_STD + 1) / PER_STD
    away = np.clip((x[:, None] - centres) * PER_STD, -1, 1)
    shares: np.ndarray = np.where(away < 0, (1 + away) ** 2 / 2, 1 - (1 - away) ** 2 / 2)
    return shares @ pieces.tents / pieces.tents.sum()


def test_boxes_alone_have_the_distribution_of_what_tents_leave() -> None:
    """Law 4 for places that land on boxes: with tents of share t and law T, they have (Φ − t·T)/(1 − t)."""
    sampler = default()
    tents, boxed = sampler.tables.tents, SLOTS - sampler.tables.tents
    count = 1_000 * boxed
    slots = np.arange(count) % boxed
    found = finish_trials(sampler, KEY, 0, Unfinished(np.arange(count), slots, np.ones(count, np.int64)))

    def expected(x: np.ndarray) -> np.ndarray:
        share = tents / SLOTS
        return (stats.norm.cdf(x) - share * tents_below(x)) / (1 - share)

    assert stats.kstest(found / sampler.std, expected).pvalue > 1e-3


def test_another_key_is_another_draw() -> None:
    one, other = draw(50_000), draw(50_000, key=bytes(32))
    assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(50_000)


def test_a_source_takes_a_fresh_key_for_every_draw() -> None:
    source = as_source("device")
    assert isinstance(source, DeviceSource)
    assert source.private
    assert source.std == EntropySource.std
    draws = [tuple(source.integers(20).tolist()) for _ in range(3)]
    assert len(set(draws)) == 3


def test_the_ledger_says_which_generator_was_used() -> None:
    draws, mechanism = [[0, 1, 2], [3, 4]], qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    with privatizer(mechanism, draws, source=DeviceSource()) as (private, batches, model):
        run(private, batches, model)
        assert private.ledger.description["noise generator"] == "ChaCha20"
    with privatizer(mechanism, draws) as (private, _, _):
        assert "noise generator" not in private.ledger.description

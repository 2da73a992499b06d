"""Sparse diagnostics measure what they say, on runs whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

import quietgrad as qg
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.research import Observer
from quietgrad._representations.low_rank.low_rank import LowRank
from quietgrad.lab.diagnostics.sparse import (
    CosineSimilarity,
    EncodedNorms,
    FreezeCounts,
    cosine_by_dimension,
)
from tests.cases.world import privatizer, run

ROWS = [[0, 1, 2, 3]] * 8


def watch(mechanism: Mechanism, observer: Observer, draws: list[list[int]] = ROWS) -> None:
    with privatizer(mechanism, draws, research=True) as (private, batches, model):
        private.watch(observer)
        run(private, batches, model, micro=3, lr=0.05)


def test_without_noise_and_clip_the_release_has_the_true_direction() -> None:
    observer = CosineSimilarity()
    watch(qg.methods.dp_sgd(clip=1e6).with_noise(0.0), observer)
    assert observer.values == pytest.approx([1.0] * 8, abs=1e-5)


def test_noise_and_frozen_coordinates_turn_it_away() -> None:
    noisy, frozen = CosineSimilarity(), CosineSimilarity()
    watch(qg.methods.dp_sgd(clip=1.0).with_noise(10.0), noisy)
    watch(qg.methods.random_freeze(freeze=0.75, clip=1e6).with_noise(0.0), frozen)
    assert max(noisy.values) < 0.5
    assert 0.2 < sum(frozen.values) / 8 < 0.8


def test_an_empty_batch_has_no_direction() -> None:
    observer = CosineSimilarity()
    watch(qg.methods.dp_sgd().with_noise(1.0), observer, [[0], [], [1]])
    assert len(observer.values) == 2


def test_frozen_coordinates_are_counted_once_an_epoch() -> None:
    observer = FreezeCounts()
    watch(qg.methods.random_freeze(freeze=0.5).with_noise(1.0), observer, [[0, 1]] * 40)
    histogram = observer.histogram()
    assert sum(histogram) == 371
    # Ten epochs: each coordinate is frozen about five times.
    assert len(histogram) <= 11
    assert sum(times * count for times, count in enumerate(histogram)) == 10 * (371 - round(0.5 * 371))


def test_a_mask_on_another_representation_is_found_and_its_absence_named() -> None:
    observer = FreezeCounts()
    watch(qg.methods.random_freeze(freeze=0.5).with_noise(1.0) @ LowRank(rank=1), observer)
    assert sum(observer.histogram()) < 371
    with pytest.raises(ValueError, match="mask"):
        watch(qg.methods.dp_sgd().with_noise(1.0), FreezeCounts())


def test_the_clip_sees_shorter_gradients_behind_a_mask() -> None:
    whole, masked = EncodedNorms(every=4), EncodedNorms(every=4)
    watch(qg.methods.dp_sgd().with_noise(0.0), whole)
    watch(qg.methods.random_freeze(freeze=0.75).with_noise(0.0), masked)
    assert sorted(whole.norms) == [0, 4]
    assert len(whole.norms[0]) == 4
    assert bool((masked.norms[0] < 0.8 * whole.norms[0]).all())


def test_more_dimensions_less_similarity() -> None:
    cosines = cosine_by_dimension([10, 1_000, 100_000], noise_multiplier=1.0)
    assert cosines[10] > cosines[1_000] > cosines[100_000]
    assert cosines[100_000] == pytest.approx(1 / math.sqrt(100_000), abs=4 / math.sqrt(100_000))
    assert torch.tensor(list(cosines.values())).abs().max() <= 1

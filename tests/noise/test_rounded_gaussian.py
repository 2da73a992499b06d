"""The default noise is exactly a rounded Gaussian: every probability, every tail, no two draws related."""

from __future__ import annotations

import math
import threading
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from quietgrad._noise import rounded_gaussian
from quietgrad._noise.aes import RandomWords
from quietgrad._noise.below import Span
from quietgrad._noise.pieces import BOXES, PER_STD, REACH, SLOTS, STRIPS, UNIT, cut
from quietgrad._noise.rounded_gaussian import AT_ONCE, RoundedGaussian, default
from quietgrad._noise.trials import roofs, tent_points
from tests.noise.scripted import Scripted


def masses(integers: np.ndarray, std: int) -> np.ndarray:
    """Φ((z + ½)/σ) − Φ((z − ½)/σ), from the side on which it is a difference of small numbers."""
    near, far = (np.abs(integers) - 0.5) / std, (np.abs(integers) + 0.5) / std
    return np.where(
        integers == 0, stats.norm.cdf(far) - stats.norm.cdf(near), stats.norm.sf(near) - stats.norm.sf(far)
    )


def test_all_words_together_give_every_integer_of_the_tents_its_exact_count() -> None:
    """At a standard deviation of 128 steps all 2²¹ words that choose a tent and a point can be gone through."""
    small, apart = RoundedGaussian(7), 16
    u, v, slot = np.meshgrid(np.arange(apart), np.arange(apart), np.arange(SLOTS), indexing="ij")
    count = u.size
    words = Scripted(
        (u.ravel() << 28 | slot.ravel() >> 4).astype(np.uint32),
        (v.ravel() << 28 | slot.ravel() & 15).astype(np.uint32),
    )
    out = np.empty(count, np.int32)
    slots = tent_points(small.tables, out, words)
    pieces = cut(128)
    found = np.bincount(out[slots < pieces.tents.sum()] + 1100, minlength=2200)
    expected = np.zeros(2200, np.int64)
    for centre, tents in zip(range(-REACH * PER_STD, REACH * PER_STD + 1), pieces.tents, strict=True):
        for away in range(-apart, apart + 1):
            expected[centre * apart + away + 1100] += tents * (apart - abs(away))
    assert expected.sum() == pieces.tents.sum() * apart * apart
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("log_std", [7, 9, 12])
def test_tents_and_boxes_together_have_the_mass_of_the_rounded_gaussian(log_std: int) -> None:
    """Tents' counts plus the area of boxes under the curve, for every integer: proportional to its true mass."""
    std, drawn = 1 << log_std, RoundedGaussian(log_std)
    integers = np.arange(-REACH * std, REACH * std)
    strips = (integers + REACH * std) // (std // PER_STD // STRIPS)
    first_box = np.searchsorted(np.repeat(np.arange(len(cut(std).boxes)), cut(std).boxes), strips)
    tents = roofs(drawn.tables, first_box, integers) * drawn._height * UNIT
    curve = masses(integers, std) * std * math.sqrt(2 * math.pi)
    boxes = curve - tents
    assert boxes.min() > 0, "the tents take no more than is there"
    assert boxes.max() <= cut(std).boxes.max() * drawn._height * UNIT
    # A slot of a tent and the boxes of a slot have the same area: the mixture of both is the curve.
    tent_area = STRIPS * drawn._height * UNIT * (std / PER_STD)
    box_area = drawn._height * UNIT * (std / PER_STD / STRIPS)
    assert tent_area == BOXES * box_area
    assert tents.sum() == pytest.approx(cut(std).tents.sum() * tent_area, rel=1e-12)


def test_boxes_of_a_strip_stand_on_each_other_without_gaps() -> None:
    drawn, boxes = default(), cut(1 << 26).boxes
    starts = drawn._box["start"][: drawn._boxes]
    width = drawn.std // PER_STD // STRIPS
    for strip in (0, 700, 1024, 2047):
        mine = np.flatnonzero(starts == (strip - REACH * PER_STD * STRIPS) * width)
        assert drawn._box["level"][mine].tolist() == list(range(boxes[strip]))
    assert len(starts) == boxes.sum()
    assert drawn._box["level"][drawn._boxes :].min() * drawn._height * UNIT > 1, "what is no box is rejected"


@pytest.mark.parametrize(("log_std", "count"), [(7, 4_000_000), (9, 4_000_000)])
def test_a_narrow_one_has_the_exact_probabilities(log_std: int, count: int) -> None:
    drawn = RoundedGaussian(log_std).draw(count, RandomWords())
    reach = 5 << log_std
    integers = np.arange(-reach, reach + 1)
    expected = masses(integers, 1 << log_std) * count
    found = np.bincount(np.clip(drawn, -reach, reach) + reach, minlength=len(integers))
    kept = expected > 10
    scaled = expected[kept] / expected[kept].sum() * found[kept].sum()
    assert stats.chisquare(found[kept], scaled).pvalue > 1e-6


def test_the_wide_one_is_normal() -> None:
    draws = default().draw(2_000_000, RandomWords()) / default().std
    n = len(draws)
    assert stats.kstest(draws, "norm").pvalue > 1e-6
    assert abs(draws.mean()) < 5 / math.sqrt(n)
    assert abs(draws.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs(stats.kurtosis(draws)) < 5 * math.sqrt(24 / n)
    assert (np.abs(draws) > 4.0).mean() == pytest.approx(
        2 * stats.norm.sf(4.0), rel=5 / math.sqrt(n * 6.3e-5)
    )
    for lag in (1, 2, 16, n // 2):
        assert abs(np.mean(draws[lag:] * draws[:-lag])) < 5 / math.sqrt(n - lag)


def test_low_bits_are_fair() -> None:
    """Steps far below a standard deviation are uniform: an attacker reads nothing from them."""
    low = default().draw(1_000_000, RandomWords()) & 255
    assert stats.chisquare(np.bincount(low, minlength=256)).pvalue > 1e-6


@pytest.mark.parametrize("count", [0, 1, 2, 7, AT_ONCE - 1, AT_ONCE + 3, 3 * AT_ONCE])
def test_every_place_is_filled(count: int) -> None:
    drawn = default().draw(count, RandomWords())
    assert drawn.shape == (count,)
    assert len(np.unique(drawn)) >= 0.99 * count


def test_places_of_rejected_trials_are_filled_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten rejected: every place ends up with a trial that was kept, and none is used twice."""
    sampler = RoundedGaussian(7)
    kept: list[np.ndarray] = []

    def trials(out: np.ndarray, _: RandomWords) -> np.ndarray:
        out[:] = np.arange(len(out)) + 1000 * len(kept)
        rejected = np.flatnonzero(np.arange(len(out)) % 10)
        kept.append(np.delete(out, rejected))
        return rejected

    monkeypatch.setattr(sampler, "_trials", trials)
    drawn = sampler.draw(100, RandomWords())
    assert len(np.unique(drawn)) == 100
    assert set(drawn) <= set(np.concatenate(kept))
    assert drawn[::10].tolist() == list(range(0, 100, 10))


# ---- boxes --------------------------------------------------------------------------------------------------


def trial(sampler: RoundedGaussian, box: int, *bits: int) -> int | None:
    """One trial of a box: its first integer, at the lower end of that one's cell, then these bits."""
    slot, part = divmod(box, BOXES)
    words = Scripted(np.array([part << 56, *bits], np.uint64))
    out = np.zeros(1, np.int32)
    rejected = sampler._from_boxes(out, np.array([0], np.int32), np.array([slot], np.int16), words)
    return None if len(rejected) else int(out[0])


def crossed(sampler: RoundedGaussian) -> tuple[int, int, float]:
    """A box that the curve goes through, its first integer, and how high the curve is in it there."""
    boxes = np.arange(sampler._boxes)
    starts, height = sampler._box["start"][boxes].astype(np.int64), sampler._height * UNIT
    floor = roofs(sampler.tables, boxes, starts) + sampler._box["level"][boxes]
    share = np.exp(-(((starts - 0.5) / sampler.std) ** 2) / 2) / height - floor
    box = int(np.flatnonzero((share > 0.2) & (share < 0.8))[100])
    return box, int(starts[box]), float(share[box])


def test_a_point_of_a_box_counts_below_the_curve_only() -> None:
    sampler = default()
    box, start, share = crossed(sampler)
    assert trial(sampler, box, int((share - 1e-6) * 2**64)) == start
    assert trial(sampler, box, int((share + 1e-6) * 2**64)) is None


def test_doubtful_points_are_decided_by_exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point whose drawn bits lie on the curve to float64's precision."""
    sampler = default()
    asked: list[tuple[Span, Span]] = []
    box, start, share = crossed(sampler)

    def lies_below(x: Span, y: Span, _: RandomWords) -> bool:
        asked.append((x, y))
        return True

    monkeypatch.setattr(rounded_gaussian, "lies_below", lies_below)
    assert trial(sampler, box, int(share * 2**64)) == start
    ((x, y),) = asked
    assert Fraction(x.low, x.over) == Fraction(2 * start - 1, 2 * sampler.std)
    assert y.low / y.over == pytest.approx(math.exp(-((x.low / x.over) ** 2) / 2), abs=1e-12)
    assert Fraction(y.width, y.over) == sampler._height * Fraction(UNIT) / 2**64


def test_the_two_ends_reach_beyond_eight_standard_deviations() -> None:
    """Bits that choose an end, its first part, and a height of 0, which is below the curve everywhere."""
    sampler = default()
    for box, sign in ((sampler._boxes, 1), (sampler._boxes + 1, -1)):
        near, far = REACH * sampler.std + 5, REACH * sampler.std + 3 * (sampler.std // PER_STD) + 5
        assert trial(sampler, box, 0, 2, 5, *[0] * 8) == (near if sign > 0 else ~near)
        assert trial(sampler, box, 0, 1, 1, 1, 0, 5, *[0] * 8) == (far if sign > 0 else ~far)
        assert trial(sampler, box, 0, 2, 5, *[2**64 - 1] * 8) is None


def test_threads_do_not_share_their_draws() -> None:
    found: list[np.ndarray] = []

    def work() -> None:
        found.extend(default().draw(AT_ONCE, RandomWords()) for _ in range(4))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = np.concatenate(found) / default().std
    assert stats.kstest(together, "norm").pvalue > 1e-6
    for i, one in enumerate(found):
        for other in found[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 6 / math.sqrt(AT_ONCE)

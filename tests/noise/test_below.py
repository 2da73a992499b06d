"""Comparisons that float64 cannot make are made exactly."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from quietgrad._noise.aes import RandomWords
from quietgrad._noise.below import Span, lies_below
from tests.noise.scripted import Scripted


def curve(x: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 150
        half = x * x / 2
        return Fraction((-Decimal(half.numerator) / Decimal(half.denominator)).exp())


@pytest.mark.parametrize("x", [Fraction(1, 3), Fraction(-7, 4), Fraction(8), Fraction(33, 2)])
def test_points_a_hair_from_the_curve_fall_on_the_right_side(x: Fraction) -> None:
    """10⁻³⁰ of the curve's height, far below what float64 resolves."""
    hair, point = curve(x) / 10**30, Fraction(1, 10**110)
    for offset, below in ((-hair, True), (hair, False)):
        assert lies_below(Span.of(x, point), Span.of(curve(x) + offset, point), RandomWords()) is below


def test_further_bits_are_drawn_until_it_is_decided() -> None:
    """y anywhere in [0, 1): the next 64 bits put it just below or above e^{−1/2}."""
    word = int(math.exp(-0.5) * 2**64)
    zero = np.zeros(1, np.uint64)
    wide, point = Span.of(Fraction(0), Fraction(1)), Span.of(Fraction(1), Fraction(1, 10**60))
    for shift, below in ((-(2**20), True), (2**20, False)):
        bits = Scripted(zero, np.array([word + shift], np.uint64))
        assert lies_below(point, wide, bits) is below


def test_a_span_across_the_middle_reaches_the_top() -> None:
    across = Span.of(Fraction(-1, 10**30), Fraction(3, 10**30))
    assert not lies_below(across, Span.of(Fraction(1), Fraction(1, 10)), RandomWords())
    assert lies_below(across, Span.of(1 - Fraction(1, 10**40), Fraction(1, 10**41)), RandomWords())


def test_the_chance_is_the_curves_height() -> None:
    """x uniform in [0, 1), y uniform in [0, 1): below with probability ∫₀¹ e^{−x²/2}."""
    words, n = RandomWords(), 4000
    unit = Span.of(Fraction(0), Fraction(1))
    found = sum(lies_below(unit, unit, words) for _ in range(n)) / n
    expected = math.sqrt(math.pi / 2) * math.erf(math.sqrt(0.5))
    assert abs(found - expected) < 5 * math.sqrt(expected * (1 - expected) / n)

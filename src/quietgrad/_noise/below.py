"""Decide exactly whether a random point lies below the Gaussian curve.

A uniform real number has infinitely many random bits, and no program draws them all. Instead a coordinate is drawn
lazily: its first bits say in which interval (`Span`) it lies. If the whole interval of y lies below the curve over the
whole interval of x, further bits cannot change the answer, and likewise above. Otherwise both intervals are narrowed by
64 bits and compared again. Each round leaves the answer open for about one point in 2⁶⁴, so the loop ends with
probability 1. Its answer is that of the real numbers: no rounding decides, so no probability is off by even one bit.

The curve itself is e^{−x²/2}, which no float is. Most points are far from it: bounds in float64 with a generous margin
decide those. For the others `decimal` computes bounds that are as tight as the intervals, 40 digits more each round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

from quietgrad._noise.aes import RandomWords

FLAT = 700.0
"""Where e^{−x} is still a normal number of float64."""


@dataclass(frozen=True, slots=True)
class Span:
    """A uniform real number of which only the first bits are drawn: it lies in [low, low + width)/over.

    Whole numbers over a common denominator are as exact as `Fraction`, without a greatest common divisor at every step.
    """

    low: int
    width: int
    over: int

    @classmethod
    def of(cls, low: Fraction, width: Fraction) -> Span:
        """Make one from its lower end and its width."""
        over = math.lcm(low.denominator, width.denominator)
        return cls(int(low * over), int(width * over), over)

    def narrow(self, bits: int) -> Span:
        """Return the part of it that 64 more random bits select."""
        return Span((self.low << 64) + bits * self.width, self.width, self.over << 64)


def lies_below(x: Span, y: Span, words: RandomWords) -> bool:
    """Return whether y < e^{−x²/2}, drawing as many further bits of x and y as the answer takes.

    Checked by: tests/noise/test_below.py.
    """
    digits = 40
    while True:
        # The curve falls with |x|: over the interval of x it is highest at the end near 0 and lowest at the far one.
        near, far = sorted((abs(x.low), abs(x.low + x.width)))
        if x.low < 0 < x.low + x.width:
            near = 0
        bottom, top, over = y.low, y.low + y.width, y.over
        low, high = _roughly(far / x.over)
        if _compare(top, over, low) <= 0 or (
            _compare(top, over, high) <= 0 and Fraction(top, over) <= _curve(Fraction(far, x.over), digits)[0]
        ):
            return True
        low, high = _roughly(near / x.over)
        if _compare(bottom, over, high) >= 0 or (
            _compare(bottom, over, low) >= 0
            and Fraction(bottom, over) >= _curve(Fraction(near, x.over), digits)[1]
        ):
            return False
        of_x, of_y = words.take(2).tolist()
        x, y, digits = x.narrow(of_x), y.narrow(of_y), digits + 40


def _compare(number: int, over: int, bound: float) -> int:
    """Return a number with the sign of number/over − bound, exactly."""
    numerator, denominator = bound.as_integer_ratio()
    return number * denominator - numerator * over


def _roughly(x: float) -> tuple[float, float]:
    """Bound e^{−x²/2} in float64, where the points that lie far from it are decided.

    The bounds are a relative 2⁻³⁰ apart on either side; float64 is right to 2⁻⁴⁰, as x²/2 is some hundreds at most.
    Where the curve leaves float64's normal range they are 0 and 1, which decide nothing.
    """
    half_square = x**2 / 2
    value = math.exp(-half_square) if half_square < FLAT else 0.0
    return value * (1 - 2.0**-30), value * (1 + 2.0**-30) if value else 1.0


def _curve(x: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Bound e^{−x²/2} to a relative 10^{10−digits}.

    Decimal's exp is correctly rounded, and x²/2 (at most some hundreds) is off by less than 10^{5−digits}.
    """
    with localcontext() as context:
        context.prec = digits
        half_square = x * x / 2
        value = Fraction((-Decimal(half_square.numerator) / Decimal(half_square.denominator)).exp())
    slack = value / 10 ** (digits - 10)
    return value - slack, value + slack

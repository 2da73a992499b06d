"""Whether a random point lies below the Gaussian curve, decided exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

from quietgrad._noise.aes import Words

FLAT = 700.0
"""Where e^{−x} is still a normal number of float64."""


@dataclass(frozen=True, slots=True)
class Span:
    """A uniform real number of which only the first bits are drawn: it lies in [low, low + width)/over.

    Whole numbers over a common one: exact as fractions are, and nothing is ever reduced.
    """

    low: int
    width: int
    over: int

    @classmethod
    def of(cls, low: Fraction, width: Fraction) -> Span:
        """Of two fractions."""
        over = math.lcm(low.denominator, width.denominator)
        return cls(int(low * over), int(width * over), over)

    def narrowed(self, bits: int) -> Span:
        """With 64 more bits."""
        return Span((self.low << 64) + bits * self.width, self.width, self.over << 64)


def lies_below(x: Span, y: Span, words: Words) -> bool:
    """y < e^{−x²/2}, where x and y go on with as many random bits as it takes to tell.

    The curve is computed exactly only where rough bounds leave both answers open.
    """
    digits = 40
    while True:
        near, far = sorted((abs(x.low), abs(x.low + x.width)))
        if x.low < 0 < x.low + x.width:
            near = 0
        bottom, top, over = y.low, y.low + y.width, y.over
        low, high = _roughly(far / x.over)
        if _compared(top, over, low) <= 0 or (
            _compared(top, over, high) <= 0
            and Fraction(top, over) <= _curve(Fraction(far, x.over), digits)[0]
        ):
            return True
        low, high = _roughly(near / x.over)
        if _compared(bottom, over, high) >= 0 or (
            _compared(bottom, over, low) >= 0
            and Fraction(bottom, over) >= _curve(Fraction(near, x.over), digits)[1]
        ):
            return False
        of_x, of_y = words.take(2).tolist()
        x, y, digits = x.narrowed(of_x), y.narrowed(of_y), digits + 40


def _compared(number: int, over: int, bound: float) -> int:
    """Has the sign of number/over − bound, exactly."""
    numerator, denominator = bound.as_integer_ratio()
    return number * denominator - numerator * over


def _roughly(x: float) -> tuple[float, float]:
    """Bounds on e^{−x²/2} of which most points are clear: a relative 2⁻³⁰ on either side, where float64 is right to
    2⁻⁴⁰ (x²/2 is some hundreds at most); none where the curve leaves float64's normal range."""
    half_square = x**2 / 2
    value = math.exp(-half_square) if half_square < FLAT else 0.0
    return value * (1 - 2.0**-30), value * (1 + 2.0**-30) if value else 1.0


def _curve(x: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Bounds on e^{−x²/2} that are a relative 10^{10−digits} apart: Decimal's exp is correctly rounded, and x²/2 (at
    most some hundreds) is off by less than 10^{5−digits}."""
    with localcontext() as context:
        context.prec = digits
        half_square = x * x / 2
        value = Fraction((-Decimal(half_square.numerator) / Decimal(half_square.denominator)).exp())
    slack = value / 10 ** (digits - 10)
    return value - slack, value + slack

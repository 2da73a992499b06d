"""Whether a random point lies below the Gaussian curve, decided exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

from quietgrad.noise.aes import Words

FLAT = 700.0
"""Where e^{−x} is still a normal number of float64."""


@dataclass(frozen=True)
class Span:
    """A uniform real number of which only the first bits are drawn: it lies in [low, low + width)."""

    low: Fraction
    width: Fraction

    def narrowed(self, words: Words) -> Span:
        """With 64 more bits."""
        part = self.width / 2**64
        return Span(self.low + int(words.take(1)[0]) * part, part)


def lies_below(x: Span, y: Span, words: Words) -> bool:
    """y < e^{−x²/2}, where x and y go on with as many random bits as it takes to tell.

    The curve is computed exactly only where rough bounds leave both answers open.
    """
    digits = 40
    while True:
        near, far = sorted((abs(x.low), abs(x.low + x.width)))
        if x.low < 0 < x.low + x.width:
            near = Fraction(0)
        top, (low, high) = y.low + y.width, _roughly(far)
        if top <= low or (top <= high and top <= _curve(far, digits)[0]):
            return True
        low, high = _roughly(near)
        if y.low >= high or (y.low >= low and y.low >= _curve(near, digits)[1]):
            return False
        x, y, digits = x.narrowed(words), y.narrowed(words), digits + 40


def _roughly(x: Fraction) -> tuple[float, float]:
    """Bounds on e^{−x²/2} of which most points are clear: a relative 2⁻³⁰ on either side, where float64 is right to
    2⁻⁴⁰ (x²/2 is some hundreds at most); none where the curve leaves float64's normal range."""
    half_square = float(x) ** 2 / 2
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

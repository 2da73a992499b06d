"""Integers with exactly the distribution of a real Gaussian that was rounded afterwards."""

from __future__ import annotations

import functools
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from quietgrad._kernels.gaussian_trials import BOX, UNDECIDED, PieceTables
from quietgrad._noise.aes import RandomWords
from quietgrad._noise.below import Span, lies_below
from quietgrad._noise.pieces import BOXES, PER_STD, REACH, SLOTS, STRIPS, UNIT, cut
from quietgrad._noise.trials import draw_boxes, draw_tents, find_integers, roofs

LOG_STD = 26
"""The default standard deviation is 2²⁶ steps: so fine that rounding a gradient to a step costs next to nothing."""
AT_ONCE = 1 << 15
"""Integers drawn at a time: the scratch arrays stay in the cache."""
MARGIN = 2.0**-40
"""Closer than this to the curve, float64 does not decide; its error is below 2⁻⁴⁸."""
NEVER = 2.0**40
"""The level of a box that lies above the curve."""


class RoundedGaussian:
    """Pr[z] = Φ((z + ½)/σ) − Φ((z − ½)/σ), σ = 2^log_std, for every integer z.

    Formal guarantee: exact, given fair random bits. A trial takes one of the slots of `pieces`, each with probability
    2⁻¹³. A tent's slot gives centre + u + u' with u, u' uniform on the integers between two centres: all integer
    arithmetic. A box's slot draws a real point in the box and keeps its integer if the point lies below the curve;
    where float64 cannot decide, exact arithmetic on further bits does (`below`). The points that trials keep are
    therefore uniform under the curve, so their abscissas are Gaussian and their integers the rounded Gaussian. No tail
    is cut, no probability approximated, every draw independent. Checked by: tests/noise/test_rounded_gaussian.py.

    A word of 64 bits makes one trial: 13 bits choose the slot, and what is left makes the two integers of a tent. One
    trial in 178 lands on a box and takes two more words; about one in 800 is rejected and repeated.
    """

    def __init__(self, log_std: int = LOG_STD) -> None:
        self.std, self._apart = 1 << log_std, (1 << log_std) // PER_STD
        self._bits = log_std - 3
        assert self._bits <= 23, "a word of 32 bits holds a point's and nine of a slot's"
        self._within = 56 - (self._bits - 4)
        pieces = cut(self.std)
        self._height, self._tents = pieces.height, int(pieces.tents.sum())
        self._end = self._height * Fraction(UNIT) / STRIPS
        # Slots are laid out as [tents | boxes]. A slot below `tents` names the centre of its tent. Each slot behind
        # them stands for 256 boxes, and eight more bits choose one of these.
        numbers = np.zeros(SLOTS, np.int8)
        numbers[: self._tents] = np.repeat(np.arange(-REACH * PER_STD, REACH * PER_STD + 1), pieces.tents)
        strips = np.repeat(np.arange(len(pieces.boxes)), pieces.boxes)
        self._boxes, rest = len(strips), (SLOTS - self._tents) * BOXES - len(strips)
        # Integers of few bits and small whole levels: each is represented exactly.
        self._box = np.zeros(len(strips) + rest, BOX)
        mine = self._box[: len(strips)]
        # A box is found by its strip: where the strip begins, how many tents stand on the two centres beside it
        # (their roof is linear in between), and how many boxes lie below it in the strip.
        mine["start"] = (strips - REACH * PER_STD * STRIPS) * (self._apart // STRIPS)
        mine["left"], mine["right"] = pieces.tents[strips // STRIPS], pieces.tents[strips // STRIPS + 1]
        mine["level"] = np.concatenate([np.arange(count) for count in pieces.boxes])
        # The first two of the rest are the endless boxes (`_beyond`). What is left over lies above the curve and
        # rejects every point, which keeps all boxes equally likely.
        self._box["level"][len(strips) :] = NEVER
        self.tables = PieceTables(
            centre=numbers,
            box=self._box,
            tents=self._tents,
            boxes=self._boxes,
            strips=STRIPS,
            log_std=log_std,
            log_apart=self._bits,
            height=self._height * UNIT,
            margin=MARGIN,
            at_once=AT_ONCE,
        )

    def draw(self, count: int, words: RandomWords) -> NDArray[np.int32]:
        """Draw `count` independent integers."""
        out = np.empty(count, np.int32)
        self.fill(out, words)
        return out

    def fill(self, out: NDArray[np.int32], words: RandomWords) -> None:
        """Overwrite a contiguous array with independent integers."""
        holes = self._trials(out, words)
        while len(holes):
            # One trial in 800 is rejected: points of further trials take its place.
            spare = np.empty(len(holes) + len(holes) // 16 + 16, np.int32)
            # Slightly more trials than holes are made, since some of these are rejected again. Surplus points are
            # dropped; which ones does not depend on their values.
            counts = np.ones(len(spare), np.bool_)
            counts[self._trials(spare, words)] = False
            kept = spare[counts][: len(holes)]
            out[holes[: len(kept)]] = kept
            holes = holes[len(kept) :]

    def _trials(self, out: NDArray[np.int32], words: RandomWords) -> NDArray[np.intp]:
        """Make one trial for each place and return the places that were rejected."""
        return self._from_boxes(out, *draw_tents(self.tables, out, words), words)

    def _from_boxes(
        self, out: NDArray[np.int32], places: NDArray[np.int32], slots: NDArray[np.int16], words: RandomWords
    ) -> NDArray[np.intp]:
        """Draw points of boxes for some places and return the places whose point lies above the curve."""
        if not len(places):  # as mostly where few places are drawn again
            return np.empty(0, np.intp)
        drawn = words.take(2 * len(places))
        verdicts = draw_boxes(self.tables, out, places, slots, drawn)
        (undecided,) = (verdicts == UNDECIDED).nonzero()
        if len(undecided):
            first, second = drawn.reshape(2, -1)[:, undecided]
            chosen = places[undecided].astype(np.intp), slots[undecided].astype(np.intp)
            verdicts[undecided] = self.decide_exactly(out, *chosen, first, second, words)
        rejected: NDArray[np.intp] = places[verdicts == 0].astype(np.intp)
        return rejected

    def decide_exactly(
        self,
        out: NDArray[np.int32],
        places: NDArray[np.intp],
        slots: NDArray[np.intp],
        first: NDArray[np.uint64],
        second: NDArray[np.uint64],
        words: RandomWords,
    ) -> list[bool]:
        """Decide by exact arithmetic, for the few points that need it, whether each counts."""
        boxes, integers = find_integers(self.tables, slots, first)
        kept = []
        for i, (box, integer) in enumerate(zip(boxes.tolist(), integers.tolist(), strict=True)):
            if box in (self._boxes, self._boxes + 1):
                beyond = self._beyond(words)
                out[places[i]] = 0 if beyond is None else beyond if box == self._boxes else ~beyond
                kept.append(beyond is not None)
            else:
                kept.append(self._lies_below(box, integer, int(first[i]), int(second[i]), words))
        return kept

    def _lies_below(self, box: int, integer: int, first: int, second: int, words: RandomWords) -> bool:
        """Make the same comparison for one point, exactly."""
        within = self._within
        fraction = Fraction(first & ((1 << within) - 1), 1 << within)
        # All of these are dyadic numbers that float64 holds exactly, so the fractions are the true coordinates of the
        # point.
        roof = Fraction(float(roofs(self.tables, np.array([box]), np.array([integer]))[0]))
        level = Fraction(float(self._box["level"][box]))
        height = self._height * Fraction(UNIT)
        return lies_below(
            Span.of((integer - Fraction(1, 2) + fraction) / self.std, Fraction(1, self.std << within)),
            Span.of((roof + level + Fraction(second, 1 << 64)) * height, height / (1 << 64)),
            words,
        )

    def _beyond(self, words: RandomWords) -> int | None:
        """Return an integer of at least REACH standard deviations, or None: a trial of the right end.

        Its box is cut at every eighth of a standard deviation, each part half as large as the one before; the curve
        falls by more than e there.
        """
        part, drawn = 0, words.take(2).tolist()
        # Heads and tails choose the part: part k with probability 2⁻ᵏ⁻¹, which is exactly its share of the endless
        # box.
        while drawn[part] & 1:
            part += 1
            drawn += words.take(1).tolist()
        inside = drawn[part + 1] & (self._apart - 1)
        integer = REACH * self.std + part * self._apart + inside
        cell = Span(2 * integer - 1, 2, 2 * self.std)
        height = Span(0, self._end.numerator, self._end.denominator << (part + 1))
        return integer if lies_below(cell, height, words) else None


@functools.lru_cache(maxsize=1)
def default() -> RoundedGaussian:
    """Return the one that sources use; its tables are made once."""
    return RoundedGaussian()

"""Verdicts that follow from figures: which rows a paper claims to be above or level with which, and if they are."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from quietgrad.lab.papers.claims import Verdict
from quietgrad.lab.papers.finding import Row


class Claim(ABC):
    """Something that a paper says about two rows."""

    @property
    @abstractmethod
    def rows(self) -> tuple[str, str]:
        """Their labels."""

    @abstractmethod
    def judged(self, first: Row, second: Row) -> tuple[Verdict, str]:
        """A verdict on these figures, and its reason."""


@dataclass(frozen=True)
class Order(Claim):
    """This row is above that one.

    Confirmed if the lead is above twice its error, refuted if it is reversed by as much, else weaker. A lead below half
    of the paper's is weaker too, however sure it is.

    Args:
        theirs: the paper's lead, where the rows' own figures are of several papers.
    """

    above: str
    below: str
    theirs: float | None = None

    @property
    def rows(self) -> tuple[str, str]:
        return self.above, self.below

    def judged(self, first: Row, second: Row) -> tuple[Verdict, str]:
        lead, error = _difference(first, second)
        theirs = self.theirs
        if theirs is None and first.theirs is not None and second.theirs is not None:
            theirs = first.theirs - second.theirs
        said = "" if theirs is None else f" (theirs {theirs:+.1f})"
        reason = f"{first.label} − {second.label}: {lead:+.1f} ± {error:.1f}{said}"
        if lead < -2 * error:
            return "refuted", reason
        small = theirs is not None and lead < theirs / 2
        return ("weaker" if lead <= 2 * error or small else "confirmed"), reason


@dataclass(frozen=True)
class Level(Claim):
    """These rows are as good as each other: weaker if they differ by more than twice the error, and than `within`."""

    one: str
    other: str
    within: float = 1.0

    @property
    def rows(self) -> tuple[str, str]:
        return self.one, self.other

    def judged(self, first: Row, second: Row) -> tuple[Verdict, str]:
        apart, error = _difference(first, second)
        level = abs(apart) <= max(2 * error, self.within)
        reason = (
            f"{first.label} and {second.label} are {'' if level else 'not '}level: {apart:+.1f} ± {error:.1f}"
        )
        return ("confirmed" if level else "weaker"), reason


def judge(rows: Sequence[Row], claims: Sequence[Claim]) -> tuple[Verdict, str]:
    """Confirmed if every claim is, refuted if one is, else weaker; with the reasons of all."""
    by_label = {row.label: row for row in rows}
    found = [claim.judged(*(by_label[label] for label in claim.rows)) for claim in claims]
    verdicts = {verdict for verdict, _ in found}
    overall: Verdict = (
        "refuted" if "refuted" in verdicts else "confirmed" if verdicts == {"confirmed"} else "weaker"
    )
    return overall, "; ".join(reason for _, reason in found)


def _difference(first: Row, second: Row) -> tuple[float, float]:
    return first.ours - second.ours, math.hypot(first.error, second.error)

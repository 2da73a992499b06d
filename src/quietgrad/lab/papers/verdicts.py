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

    Seen if the lead is above twice its error, and seen in part if it is below half of the paper's. A lead that is not
    seen says nothing about other scales.

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
        if lead <= 2 * error:
            return "lead not seen", reason
        small = theirs is not None and lead < theirs / 2
        return ("lead seen in part" if small else "lead seen"), reason


@dataclass(frozen=True)
class Level(Claim):
    """These rows are as good as each other: they differ by at most twice the error, or by `within`."""

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
        return ("holds" if level else "does not hold"), reason


def judge(rows: Sequence[Row], claims: Sequence[Claim]) -> tuple[Verdict, str]:
    """Return one verdict on all claims about accuracies, with the reasons of each.

    The first lead that is claimed is the paper's headline: where it is not seen, the others do not make up for it.
    A table of which no two rows can be compared yet has no verdict: "not run".
    """
    found = [verdict for verdict, _ in judge_each(rows, claims)]
    if claims and not found:
        return "not run", "no claim's rows have run yet"
    why = "; ".join(reason for _, reason in judge_each(rows, claims))
    leads = [verdict for verdict in found if verdict.startswith("lead")]
    if not leads:
        return _statement(found), why
    if leads[0] == "lead not seen":
        return "lead not seen", why
    return ("lead seen" if set(found) <= {"lead seen", "holds"} else "lead seen in part"), why


def judge_statement(rows: Sequence[Row], claims: Sequence[Claim]) -> tuple[Verdict, str]:
    """Return one verdict on rows that are no accuracies: an order of such figures is a statement, not a lead."""
    found = judge_each(rows, claims)
    return _statement([verdict for verdict, _ in found]), "; ".join(reason for _, reason in found)


def judge_each(rows: Sequence[Row], claims: Sequence[Claim]) -> list[tuple[Verdict, str]]:
    """Return the verdict on each claim whose rows are there, and its reason."""
    by_label = {row.label: row for row in rows}
    there = [claim for claim in claims if by_label.keys() >= set(claim.rows)]
    return [claim.judged(*(by_label[label] for label in claim.rows)) for claim in there]


def _statement(verdicts: Sequence[Verdict]) -> Verdict:
    right = [verdict in ("lead seen", "holds") for verdict in verdicts]
    return "holds" if all(right) else "holds in part" if any(right) else "does not hold"


def _difference(first: Row, second: Row) -> tuple[float, float]:
    return first.ours - second.ours, math.hypot(first.error, second.error)

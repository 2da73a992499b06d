"""What an experiment found: theirs beside ours, a verdict and its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quietgrad.lab.papers.claims import Verdict

Scale = Literal["quick", "reduced", "full"]
SCALES: tuple[Scale, ...] = ("quick", "reduced", "full")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of a table.

    Args:
        label: what it is of.
        theirs: the paper's number; None where the paper has none.
        ours: the mean over runs.
        spread: standard deviation over runs, or the error of the test set if that is larger; None if exact.
        note: learning rate, number of seeds, ε.
        runs: how many `ours` is the mean of.
    """

    label: str
    ours: float
    theirs: float | None = None
    spread: float | None = None
    note: str = ""
    runs: int = 1

    @property
    def error(self) -> float:
        """Of the mean."""
        return (self.spread or 0.0) / math.sqrt(self.runs)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line of a picture."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Axes with curves; drawn by `draw`."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Rows, pictures and what they say about the paper's claim.

    Args:
        unit: of the rows' numbers.
        settings: what was run, so that a reader knows what the numbers are of.
    """

    rows: tuple[Row, ...]
    verdict: Verdict
    why: str
    unit: str = "test accuracy, %"
    settings: str = ""
    pictures: tuple[Picture, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def finding_from(raw: Mapping[str, Any]) -> Finding:
    """What `as_dict` and JSON made of a finding."""
    pictures = tuple(
        Picture(**{**picture, "curves": tuple(_curve(curve) for curve in picture["curves"])})
        for picture in raw["pictures"]
    )
    return Finding(**{**raw, "rows": tuple(Row(**row) for row in raw["rows"]), "pictures": pictures})


def _curve(raw: Mapping[str, Any]) -> Curve:
    return Curve(label=raw["label"], x=tuple(raw["x"]), y=tuple(raw["y"]))


@dataclass(frozen=True)
class Order:
    """A claim of the kind "this row is above that one".

    Args:
        theirs: the paper's lead, where the rows' own figures are of several papers.
    """

    above: str
    below: str
    theirs: float | None = None


def judged_by_order(rows: Sequence[Row], claims: Sequence[Order]) -> tuple[Verdict, str]:
    """Confirmed if every claimed lead is above twice its error, refuted if one is reversed by as much, else weaker.

    A lead below half of the paper's is weaker too, however sure it is.
    """
    by_label = {row.label: row for row in rows}
    verdicts, reasons = [], []
    for claim in claims:
        verdict, reason = _lead(by_label[claim.above], by_label[claim.below], claim.theirs)
        verdicts.append(verdict)
        reasons.append(reason)
    overall: Verdict = (
        "refuted" if "refuted" in verdicts else "confirmed" if set(verdicts) == {"confirmed"} else "weaker"
    )
    return overall, "; ".join(reasons)


def _lead(above: Row, below: Row, claimed: float | None) -> tuple[Verdict, str]:
    lead = above.ours - below.ours
    error = math.hypot(above.error, below.error)
    theirs = claimed
    if theirs is None and above.theirs is not None and below.theirs is not None:
        theirs = above.theirs - below.theirs
    said = "" if theirs is None else f" (theirs {theirs:+.1f})"
    reason = f"{above.label} − {below.label}: {lead:+.1f} ± {error:.1f}{said}"
    if lead < -2 * error:
        return "refuted", reason
    small = theirs is not None and lead < theirs / 2
    return ("weaker" if lead <= 2 * error or small else "confirmed"), reason

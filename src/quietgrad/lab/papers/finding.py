"""What an experiment found: theirs beside ours, a verdict and its reason."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
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
    """Axes with curves; drawn by `draw`.

    Args:
        title: what tells it from other pictures of its entry.
    """

    x: str
    y: str
    curves: tuple[Curve, ...]
    title: str = ""
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Rows, pictures and what they say about the paper's claim.

    Args:
        unit: of the rows' numbers.
        settings: what was run, so that a reader knows what the numbers are of.
        seconds: of all its trainings, in however many pieces they ran; None if it has none.
    """

    rows: tuple[Row, ...]
    verdict: Verdict
    why: str
    unit: str = "test accuracy, %"
    settings: str = ""
    pictures: tuple[Picture, ...] = field(default=())
    seconds: float | None = None

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

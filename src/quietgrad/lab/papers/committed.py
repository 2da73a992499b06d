"""Results that come with the package, and those that a user's own run writes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from quietgrad.lab.files import to_json, write_whole
from quietgrad.lab.papers.claims import PaperEntry, Verdict
from quietgrad.lab.papers.finding import SCALES, Finding, Scale, finding_from

PARTIAL = "partial.json"
"""How the file of an unfinished table ends."""
FOLDER = files("quietgrad.lab.papers") / "results"


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finding with where it came from.

    Args:
        command: what makes it again.
        seconds: how long it took; None where that was not kept.
        remark: what a reader must know beside the command, such as settings that have changed since.
    """

    paper: str
    entry: str
    scale: Scale
    command: str
    seconds: float | None
    finding: Finding
    remark: str = ""

    @property
    def name(self) -> str:
        return f"{self.paper}.{self.entry}.{self.scale}"

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "finding": self.finding.as_dict()}


def command_of(paper: str, entry: str, scale: Scale) -> str:
    """As a user types it."""
    return f"quietgrad papers {paper} {entry} --scale {scale}"


def write_result(result: Result, folder: Path) -> Path:
    """`PAPER.ENTRY.SCALE.json` in the folder."""
    path = folder / f"{result.name}.json"
    write_whole(path, (to_json(result.as_dict()) + "\n").encode())
    return path


def keep_partial(result: Result, folder: Path) -> Path:
    """Write the rows that a long table has so far to `PAPER.ENTRY.SCALE.partial.json`."""
    path = folder / f"{result.name}.{PARTIAL}"
    write_whole(path, (to_json(result.as_dict()) + "\n").encode())
    return path


def committed() -> dict[tuple[str, str], Result]:
    """(paper, entry) → the result at its largest scale."""
    found: dict[tuple[str, str], Result] = {}
    for result in sorted(_all(), key=lambda result: SCALES.index(result.scale)):
        found[result.paper, result.entry] = result
    return found


def verdict_of(entry: PaperEntry, result: Result | None) -> tuple[Verdict, str]:
    """The result's verdict, or the catalogue's where nothing was measured."""
    return (entry.verdict, entry.why) if result is None else (result.finding.verdict, result.finding.why)


def verdict_text(verdict: Verdict, result: Result | None) -> str:
    """The verdict for readers: a lead that was not seen names the scale, since another may show it."""
    return f"{verdict} at this scale ({result.scale})" if verdict == "lead not seen" and result else verdict


def status_of(entry: PaperEntry, result: Result | None) -> str:
    """measured (at which scale), tested, read, not run, not checkable here."""
    if result is not None:
        return f"measured ({result.scale})"
    if entry.verdict in ("not run", "not checkable here"):
        return entry.verdict
    if entry.check.startswith("tests/"):
        return "tested"
    return "read" if entry.check.startswith(("docs/", "read")) else "measured"


def _all() -> Iterable[Result]:
    for file in FOLDER.iterdir():
        if file.name.endswith(".json"):
            raw = json.loads(file.read_text(encoding="utf-8"))
            yield Result(**{**raw, "finding": finding_from(raw["finding"])})

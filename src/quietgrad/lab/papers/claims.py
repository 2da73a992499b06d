"""What the five papers claim, one TOML file a paper, and what was found here."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from quietgrad.lab.errors import LabError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Verdict = Literal[
    "holds",
    "holds in part",
    "does not hold",
    "lead seen",
    "lead seen in part",
    "lead not seen",
    "not checkable here",
    "not run",
]
"""Of a statement, which holds or not, or of a lead in accuracy, which was seen at some scale or not."""
Kind = Literal["algorithm", "table", "figure", "theorem", "lemma", "proposition", "corollary", "remark"]
NAMES = ("gep", "rgp", "pdp_sgd", "random_freeze", "gip")


@dataclass(frozen=True, kw_only=True)
class PaperEntry:
    """One algorithm, table, figure or statement of a paper.

    Args:
        id: how the command line calls it, "table1".
        kind: what it is.
        title: in a few words.
        theirs: what the paper says, with its figures.
        ours: what was found here; of an entry with committed results, the words beside them.
        verdict: of what is checked by a test or by reading; a committed result has its own.
        why: the reason for the verdict; for what was not run, the cost and the command.
        check: the test or command that checks it.
    """

    id: str
    kind: Kind
    title: str
    theirs: str
    ours: str
    verdict: Verdict
    why: str
    check: str


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper and all its entries, in its own order.

    Args:
        called: the method's name, as a title says it.
        summary: what holds and what does not, in a few sentences.
    """

    id: str
    called: str
    title: str
    authors: str
    year: int
    summary: str
    entries: tuple[PaperEntry, ...]

    def entry(self, name: str) -> PaperEntry:
        """By its id, or an error that lists what there is."""
        found = {entry.id: entry for entry in self.entries}
        if name not in found:
            raise LabError(f"{self.id} has no {name!r}{nearest(name, found)}. It has: {', '.join(found)}.")
        return found[name]

    def heading(self, entry: PaperEntry) -> str:
        """Of a picture: "GEP, figure 6: accuracy against k"."""
        number = entry.id.removeprefix(entry.kind)
        return f"{self.called}, {entry.kind} {number}: {entry.title}"


@cache
def papers() -> Mapping[str, Paper]:
    """All five, by id."""
    return {name: _paper(name) for name in NAMES}


def paper(name: str) -> Paper:
    """By its id, or an error that lists what there is."""
    if name not in NAMES:
        raise LabError(f"Unknown paper {name!r}{nearest(name, NAMES)}. Known: {', '.join(NAMES)}.")
    return papers()[name]


def read_entries(name: str) -> dict[str, Any]:
    """Return a paper's TOML file as it is written."""
    text = (files("quietgrad.lab.papers") / "entries" / f"{name}.toml").read_text(encoding="utf-8")
    raw: dict[str, Any] = tomllib.loads(text)
    return raw


def one_line(value: Any) -> Any:
    """Join the lines of a text; leave other values alone."""
    return " ".join(value.split()) if isinstance(value, str) else value


def _paper(name: str) -> Paper:
    raw = read_entries(name)
    head = {key: one_line(value) for key, value in raw.items() if key not in ("entry", "changes", "plans")}
    entries = tuple(
        PaperEntry(
            **{key: one_line(value) for key, value in row.items() if key not in ("trainings", "regimes")}
        )
        for row in raw["entry"]
    )
    return Paper(id=name, entries=entries, **head)

"""Read the trainings of a paper's tables and figures from its TOML file.

An entry with `[entry.regimes]` is a map of one method over budgets and sizes, on the grid of `shared.toml`.
An entry that is a table of accuracies has `[entry.trainings]`: its cells, what the paper claims about them (`above`,
`level`) and a plan for each scale. A change that begins with "@" stands for a list in `[changes]` of the same file or
of `shared.toml`. A plan that is a name stands for one in `[plans]`. Cells without a config have that of their table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from quietgrad.lab.papers.claims import one_line, read_entries
from quietgrad.lab.papers.finding import SCALES
from quietgrad.lab.papers.regimes import Corner, Regimes
from quietgrad.lab.papers.trainings import Cell, TrainingPlan, Trainings
from quietgrad.lab.papers.verdicts import Level, Order


@cache
def trainings_of(paper: str) -> Mapping[str, Trainings]:
    """Return the paper's tables of trainings by entry."""
    raw = read_entries(paper)
    reader = _Reader({**read_entries("shared")["changes"], **raw.get("changes", {})}, raw.get("plans", {}))
    return {
        entry["id"]: reader.trainings(entry["trainings"]) for entry in raw["entry"] if "trainings" in entry
    }


@cache
def regimes_of(paper: str) -> Mapping[str, Regimes]:
    """Return the paper's maps by entry."""
    shared = read_entries("shared")
    grid, reader = shared["regimes"], _Reader(shared["changes"], {})
    corners = {
        scale: tuple(
            Corner(size=size, epsilon=epsilon, changes=(*changes, f"privacy.epsilon={epsilon}"))
            for size, changes in axes["size"].items()
            for epsilon in axes["epsilon"]
        )
        for scale, axes in grid["grid"].items()
    }
    return {
        entry["id"]: Regimes(
            label=entry["regimes"]["label"],
            config=grid["config"],
            base=tuple(grid["base"]),
            method=tuple(entry["regimes"]["method"]),
            plans={scale: reader.plan(raw, grid["config"]) for scale, raw in grid["plans"].items()},
            corners=corners,
        )
        for entry in read_entries(paper)["entry"]
        if "regimes" in entry
    }


class _Reader:
    """Resolve the names of one file while reading its tables."""

    def __init__(self, changes: Mapping[str, Sequence[str]], plans: Mapping[str, Any]) -> None:
        self._changes, self._plans = changes, plans

    def trainings(self, raw: Mapping[str, Any]) -> Trainings:
        config = raw["config"]
        plans = {scale: self.plan(raw["plans"][scale], config) for scale in SCALES if scale in raw["plans"]}
        above = (Order(*claim) for claim in raw.get("above", ()))
        level = (Level(*claim) for claim in raw.get("level", ()))
        options = {key: raw[key] for key in ("curves", "x_label", "log_x") if key in raw}
        cells = self._cells(raw["cells"], config)
        return Trainings(cells=cells, plans=plans, claims=(*above, *level), **options)

    def plan(self, raw: Any, config: str) -> TrainingPlan:
        own = dict(self._plans[raw] if isinstance(raw, str) else raw)
        own["changes"] = self._expanded(own.get("changes", ()))
        own["cells"] = self._cells(own.get("cells", ()), config)
        own["said"] = one_line(own.get("said", ""))
        own["factors"] = tuple(own.get("factors", (1.0,)))
        return TrainingPlan(**own)

    def _cells(self, raw: Sequence[Mapping[str, Any]], config: str) -> tuple[Cell, ...]:
        return tuple(
            Cell(
                label=cell["label"],
                config=cell.get("config", config),
                changes=self._expanded(cell.get("changes", ())),
                theirs=cell.get("theirs"),
                at=(cell["at"][0], float(cell["at"][1])) if "at" in cell else None,
            )
            for cell in raw
        )

    def _expanded(self, changes: Sequence[str]) -> tuple[str, ...]:
        lists = (self._changes[c[1:]] if c.startswith("@") else (c,) for c in changes)
        return tuple(change for found in lists for change in found)

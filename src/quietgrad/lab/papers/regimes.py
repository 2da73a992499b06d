"""Where a method leads DP-SGD: a map over budgets and network sizes, both tuned alike on the same records."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from quietgrad.lab.papers.claims import Verdict
from quietgrad.lab.papers.experiment import Experiment, Place
from quietgrad.lab.papers.finding import SCALES, Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.trainings import Cell, TrainingPlan, Trainings
from quietgrad.lab.run.config import Config

LEAD = 2.0
"""Points of accuracy from which on a lead counts."""
SURE = 2.0
"""Errors that a lead is above if it counts."""
BASE = "DP-SGD"


@dataclass(frozen=True, kw_only=True)
class Corner:
    """One place of the map.

    Args:
        size: of the network, as the figure calls it.
        changes: of the config, for the size and the budget.
    """

    size: str
    epsilon: float
    changes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.size}, ε = {self.epsilon:g}"


@dataclass(frozen=True, kw_only=True)
class Regimes(Experiment):
    """The lead of one method over DP-SGD at every corner of a grid.

    Args:
        label: what the paper calls the method.
        config: of the package, which every training begins with.
        base: changes that make it DP-SGD.
        method: changes that make it the paper's method.
        plans: what is changed everywhere, seeds and learning rates.
        corners: of each scale.
    """

    label: str
    config: str
    base: tuple[str, ...]
    method: tuple[str, ...]
    plans: Mapping[Scale, TrainingPlan]
    corners: Mapping[Scale, tuple[Corner, ...]]

    @property
    def scales(self) -> tuple[Scale, ...]:
        return tuple(scale for scale in SCALES if scale in self.plans)

    @property
    def resumable(self) -> bool:
        return True

    def configs(self, scale: Scale) -> dict[str, Config]:
        """label → what is run, at seed 0 and the config's own learning rate."""
        return self._trainings.configs(scale)

    def trainings(self, scale: Scale) -> frozenset[str]:
        return self._trainings.trainings(scale)

    def seconds(self, scale: Scale, place: Place) -> float:
        return self._trainings.seconds(scale, place)

    def run(self, scale: Scale, place: Place) -> Finding:
        found = self._trainings.run(scale, place)
        accuracies = {row.label: row for row in found.rows}
        rows = [self._lead(accuracies, corner) for corner in self.corners[scale]]
        verdict, why = judge_map(rows)
        return Finding(
            rows=tuple(rows),
            verdict=verdict,
            why=why,
            unit=f"lead of {self.label} over {BASE}, points of test accuracy",
            settings=found.settings,
            pictures=(self._map(scale, rows),),
            seconds=found.seconds,
        )

    @cached_property
    def _trainings(self) -> Trainings:
        """All trainings as one table; the baseline's are shared by the maps of all papers."""
        plans = {
            scale: TrainingPlan(
                changes=plan.changes,
                seeds=plan.seeds,
                factors=plan.factors,
                seed_spread=plan.seed_spread,
                said=plan.said,
                cells=tuple(self._cells(scale)),
            )
            for scale, plan in self.plans.items()
        }
        return Trainings(cells=(), plans=plans, claims=())

    def _cells(self, scale: Scale) -> Iterator[Cell]:
        for corner in self.corners[scale]:
            for label, changes in ((BASE, self.base), (self.label, self.method)):
                yield Cell(
                    label=f"{label}, {corner.name}", config=self.config, changes=(*corner.changes, *changes)
                )

    def _lead(self, rows: Mapping[str, Row], corner: Corner) -> Row:
        one, other = (rows[f"{label}, {corner.name}"] for label in (self.label, BASE))
        return Row(
            label=corner.name,
            ours=round(one.ours - other.ours, 2),
            spread=round(math.hypot(one.error, other.error), 2),
            note=f"{one.ours:.1f} ({_run(one)}) for {other.ours:.1f} ({_run(other)})",
        )

    def _map(self, scale: Scale, rows: list[Row]) -> Picture:
        lines: dict[str, list[tuple[float, float]]] = {}
        for corner, row in zip(self.corners[scale], rows, strict=True):
            lines.setdefault(corner.size, []).append((corner.epsilon, row.ours))
        curves = [_curve(size, points) for size, points in lines.items()]
        budgets = sorted({corner.epsilon for corner in self.corners[scale]})
        level = Curve(label=f"lead of {LEAD:g}", x=tuple(budgets), y=(LEAD,) * len(budgets))
        return Picture(x="ε", y=f"lead over {BASE}, points", curves=(*curves, level), log_x=True)


def judge_map(rows: list[Row]) -> tuple[Verdict, str]:
    """Return whether some corner has a lead of LEAD points beyond SURE errors, and what the largest one is."""
    sure = [row for row in rows if row.ours > SURE * (row.spread or 0.0)]
    large = [row for row in sure if row.ours >= LEAD]
    best = max(rows, key=lambda row: row.ours)
    why = (
        f"{len(large)} of {len(rows)} places have a lead of {LEAD:g} points or more beyond {SURE:g} errors; "
        f"the largest is {best.ours:+.1f} ± {best.spread or 0.0:.1f} ({best.label})"
    )
    if large:
        return "lead seen", why
    return ("lead seen in part" if sure else "lead not seen"), why


def _run(row: Row) -> str:
    """The learning rate that was chosen, and steps that a crash lost."""
    return ", ".join(part for part in row.note.split(", ") if part.startswith("lr ") or "lost" in part)


def _curve(label: str, points: list[tuple[float, float]]) -> Curve:
    points = sorted(points)
    return Curve(label=label, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))

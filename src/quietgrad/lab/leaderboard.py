"""Shows a comparison: bars while it runs, a table and a plot when it is done."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from quietgrad.lab.compare import Job, Row

mpl.use("Agg")


class Bars:
    """One bar per run, each with the ε spent and the accuracy so far."""

    def __init__(self, todo: Sequence[Job], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<34}"),
            BarColumn(),
            TextColumn("ε {task.fields[epsilon]:>6}"),
            TextColumn("{task.fields[accuracy]:>6}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: list[TaskID] = [
            self._progress.add_task(job.out.name, total=None, start=False, epsilon="", accuracy="")
            for job in todo
        ]

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def heard(self, number: int, message: dict[str, Any]) -> None:
        """Show what a run reported."""
        task = self._tasks[number]
        self._progress.start_task(task)
        if "steps" in message:
            self._progress.update(task, total=message["steps"], completed=message["step"])
        if "accuracy" in message:
            shown = {"epsilon": budget(message["epsilon"]), "accuracy": f"{message['accuracy']:.1%}"}
            self._progress.update(task, **shown)
        if "done" in message:
            self._progress.update(task, total=1, completed=1)
            self._progress.stop_task(task)


def budget(epsilon: float) -> str:
    """ε for people."""
    return "∞" if math.isinf(epsilon) else f"{epsilon:.3g}"


def table(rows: Sequence[Row]) -> Table:
    """The leaderboard: one line per method and budget."""
    shown = Table(title=None)
    for title in ("method", "accuracy", "ε", "seconds", "peak MB"):
        shown.add_column(title, justify="left" if title == "method" else "right")
    for row in rows:
        spread = f" ± {100 * row.std:.1f}" if len(row.runs) > 1 else ""
        seconds = f"{row.seconds:.0f}" if row.seconds else "–"
        memory = f"{row.memory_mb:.0f}" if row.memory_mb else "–"
        shown.add_row(row.method, f"{100 * row.accuracy:.1f}{spread}", budget(row.epsilon), seconds, memory)
    return shown


def plot(rows: Sequence[Row], path: Path) -> None:
    """Accuracy against ε, one line per method, the ends as horizontal lines."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    for method, points in by_method.items():
        points = sorted(points, key=lambda row: row.target)
        accuracies = [100 * row.accuracy for row in points]
        if not 0 < points[0].target < math.inf:
            axes.axhline(accuracies[0], color="0.6", linestyle=":", linewidth=1.2)
            axes.annotate(
                method, (1.0, accuracies[0]), xycoords=("axes fraction", "data"), ha="right", va="bottom"
            )
            continue
        errors = [100 * row.std for row in points]
        axes.errorbar([row.target for row in points], accuracies, errors, marker="o", capsize=3, label=method)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="ε", ylabel="test accuracy (%)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)

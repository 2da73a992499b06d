"""Shows a comparison: bars while it runs, a table when it is done."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from quietgrad.lab.compare.comparison import ComparisonRow
from quietgrad.lab.formatting import epsilon_text, method_title, percent_text


class Bars:
    """One bar per run, each with the ε spent and the accuracy so far."""

    def __init__(self, names: Sequence[str], console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=24),
            TextColumn("ε {task.fields[epsilon]:>5}"),
            TextColumn("{task.fields[accuracy]:>6}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: list[TaskID] = [
            self._progress.add_task(name, total=None, start=False, epsilon="", accuracy="") for name in names
        ]

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, number: int, message: dict[str, Any]) -> None:
        """Show what a run reported."""
        task = self._tasks[number]
        self._progress.start_task(task)
        if "steps" in message:
            self._progress.update(task, total=message["steps"], completed=message["step"])
        if "accuracy" in message:
            epsilon, accuracy = epsilon_text(message["epsilon"]), percent_text(message["accuracy"])
            self._progress.update(task, epsilon=epsilon, accuracy=accuracy)
        if "done" in message:
            self._progress.update(task, total=1, completed=1)
            self._progress.stop_task(task)


def cells(row: ComparisonRow) -> tuple[str, ...]:
    """A row of the leaderboard as text, in the order of `TITLES`."""
    spread = f" ± {100 * row.std:.1f}" if len(row.runs) > 1 else ""
    ratio = "–" if row.noise_to_signal is None else f"{row.noise_to_signal:.1f}"
    seconds = f"{row.seconds:.0f}" if row.seconds else "–"
    memory = f"{row.memory_mb:.0f}" if row.memory_mb else "–"
    accuracy = f"{100 * row.accuracy:.1f}{spread}"
    balanced = "–" if row.balanced_accuracy is None else f"{100 * row.balanced_accuracy:.1f}"
    area = "–" if row.auc is None else f"{row.auc:.3f}"
    title = method_title(row.method)
    name = row.method if title == row.method else f"{row.method} ({title})"
    return name, epsilon_text(row.epsilon), accuracy, balanced, area, ratio, seconds, memory


NAME_WIDTH = 18
"""Letters of a line of a method's name and title."""
TITLES = ("method", "ε", "accuracy %", "balanced %", "AUC", "noise / signal", "seconds", "peak MB")


def table(rows: Sequence[ComparisonRow]) -> Table:
    """The leaderboard: one line per method and budget."""
    # What a user types as a method is never cut: its column keeps its width, and eight columns fit into 80 letters.
    shown = Table(title=None, padding=(0, 1, 0, 0))
    shown.add_column(TITLES[0], no_wrap=True)
    for title in TITLES[1:]:
        shown.add_column(title, justify="right", overflow="fold")
    for row in rows:
        name, *numbers = cells(row)
        lines = wrap(name, NAME_WIDTH, break_long_words=False, break_on_hyphens=False)
        shown.add_row("\n".join(lines), *numbers)
    return shown

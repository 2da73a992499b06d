"""What a run tells while it goes on: nothing, or a bar with ε spent, accuracy and the time left."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from quietgrad import Privatizer
from quietgrad.lab.formatting import method_title, percent_text
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.setup import Setup


class Reporter:
    """Receives a run's progress; the run is a `with` block of it."""

    def start(self, config: Config, private: Privatizer, setup: Setup) -> None: ...
    def stepped(self, step: int) -> None: ...
    def evaluated(self, point: dict[str, float]) -> None: ...
    def stop(self) -> None: ...

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Silent(Reporter):
    """Says nothing."""


class TimeLeft(TimeRemainingColumn):
    """The time left, labelled: a bare 0:03:20 reads like time spent."""

    def render(self, task: Task) -> Text:
        return super().render(task) + Text(" left", style="progress.remaining")


class Bar(Reporter):
    """A progress bar; ε and accuracy are refreshed whenever the run evaluates itself."""

    def __init__(self, console: Console) -> None:
        columns: tuple[Any, ...] = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("ε {task.fields[epsilon]:.3f}"),
            TextColumn("test accuracy {task.fields[accuracy]}"),
            TimeLeft(),
        )
        self._progress = Progress(*columns, console=console)

    def start(self, config: Config, private: Privatizer, setup: Setup) -> None:
        self._progress.console.print(setup.parts.sizes, highlight=False)
        self._progress.start()
        self._task = self._progress.add_task(
            method_title(config.method.name),
            total=setup.batches.steps,
            completed=private.step,
            epsilon=0.0,
            accuracy="–",
        )

    def stepped(self, step: int) -> None:
        self._progress.update(self._task, completed=step)

    def evaluated(self, point: dict[str, float]) -> None:
        self._progress.update(self._task, epsilon=point["epsilon"], accuracy=percent_text(point["accuracy"]))

    def stop(self) -> None:
        """Leave the terminal as it was, also after an interrupt."""
        self._progress.stop()

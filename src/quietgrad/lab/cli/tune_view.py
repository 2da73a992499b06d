"""A search with its progress, and what it found."""

from __future__ import annotations

from pathlib import Path

import tomli_w
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from quietgrad.lab.files import to_json, write_whole
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.tune.private import private_search
from quietgrad.lab.tune.search import search
from quietgrad.lab.tune.search_space import SearchSpace


def tune_for_free(
    space: SearchSpace, on: str, tries: int, folder: Path, data_dir: Path | None, *, as_json: bool
) -> None:
    columns = (
        TextColumn("tries"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("best {task.fields[best]:.1%}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("tries", total=tries, best=0.0)
        found = search(
            space,
            on,
            tries,
            folder,
            data_dir=data_dir,
            progress=lambda made, best: bar.update(task, completed=made, best=max(best, 0.0)),
        )
    file = folder / "config.toml"
    write_whole(file, tomli_w.dumps(found.config.plain()).encode())
    if as_json:
        answer = {
            "accuracy": found.accuracy,
            "own_accuracy": found.own_accuracy,
            "tries": found.tries,
            "epsilon": 0.0,
        }
        typer.echo(to_json({"config": str(file), "on": on, **answer, "chosen": found.config.plain()}))
        return
    before = (
        "" if found.own_accuracy is None else f", {found.own_accuracy:.1%} with the config's own settings"
    )
    training, method = found.config.training, found.config.method
    typer.echo(
        f"{method.name}, lr {training.lr:g}, clip {method.options.get('clip', '–')}, batch {training.batch:g}: "
        f"{found.accuracy:.1%} on {on} data{before}. {found.tries} tries, which cost no ε."
    )
    typer.echo(f"Written: {file}. Train it: quietgrad train {file}")


def tune_privately(
    space: SearchSpace, mean_tries: int, folder: Path, data_dir: Path | None, *, as_json: bool
) -> None:
    # Neither the number of tries nor what the others reached is shown: only the best is released.
    with Console(stderr=True).status("Searching on the private records; the number of tries stays private."):
        found = private_search(space, float(mean_tries), folder, data_dir=data_dir)
    if as_json:
        answer = {"accuracy": found.accuracy, "epsilon": found.epsilon, "delta": found.delta}
        typer.echo(
            to_json({"run": str(found.run), "on": "private", **answer, "chosen": found.config.plain()})
        )
        return
    training, method = found.config.training, found.config.method
    typer.echo(
        f"{method.name}, lr {training.lr:g}, clip {method.options.get('clip', '–')}: {found.accuracy:.1%} of the test "
        f"data right. The whole search costs ε = {epsilon_text(found.epsilon)} at δ = {found.delta:g}, "
        f"{mean_tries} tries on average."
    )
    typer.echo(f"The released run: {found.run}")

"""`quietgrad tune`: settings found on public or made-up data for free, or on the private data for a stated price."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import tomli_w
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json
from quietgrad.lab.files import to_json, write_whole
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.run.config import load_config
from quietgrad.lab.tune.private import private_search
from quietgrad.lab.tune.search import search
from quietgrad.lab.tune.search_space import SearchSpace


class On(str, Enum):
    """Which data the tries see."""

    public = "public"
    synthetic = "synthetic"
    private = "private"


def tune(
    config: ConfigFile,
    *,
    on: Annotated[On, typer.Option(help="Data that the tries see; private costs more ε.")],
    changes: Changes = None,
    methods: Annotated[
        str, typer.Option(help="To choose from, separated by commas; the config's if left out.")
    ] = "",
    tries: Annotated[
        int, typer.Option(min=1, help="How many; of a private search the mean of a random number.")
    ] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/tune-NAME if left out.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Find learning rate, clip, batch and method at the config's ε; started again, it goes on where it was stopped."""
    base = load_config(config, changes)
    names = tuple(dict.fromkeys(n.strip().replace("-", "_") for n in methods.split(",") if n.strip()))
    space = SearchSpace(base, names or (base.method.name,))
    folder = out or Path("runs") / f"tune-{config.stem}"
    if on is On.private:
        _private(space, tries, folder, data_dir, as_json=as_json)
    else:
        _free(space, on.value, tries, folder, data_dir, as_json=as_json)


def _free(
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


def _private(
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

"""`quietgrad tune`: settings found on public or made-up data for free, or on the private data for a stated price."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json


class On(str, Enum):
    """Which data the tries see."""

    public = "public"
    synthetic = "synthetic"
    private = "private"


def tune(
    config: ConfigFile,
    *,
    on: Annotated[
        On, typer.Option(help="public, synthetic or private: data that the tries see; private costs ε.")
    ],
    changes: Changes = None,
    methods: Annotated[
        str, typer.Option(help="Methods to choose from, separated by commas; the config's if left out.")
    ] = "",
    tries: Annotated[
        int, typer.Option(min=1, help="How many tries; for a private search the mean of a random number.")
    ] = 20,
    out: Annotated[Path | None, typer.Option(help="Folder; runs/tune-NAME if left out.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Search learning rate, clip, batch and method at the config's ε; started again, it continues."""
    from quietgrad.lab.cli.tune_view import tune_for_free, tune_privately
    from quietgrad.lab.run.config import load_config
    from quietgrad.lab.tune.search_space import SearchSpace

    base = load_config(config, changes)
    names = tuple(dict.fromkeys(n.strip().replace("-", "_") for n in methods.split(",") if n.strip()))
    space = SearchSpace(base, names or (base.method.name,))
    folder = out or Path("runs") / f"tune-{config.stem}"
    if on is On.private:
        tune_privately(space, tries, folder, data_dir, as_json=as_json)
    else:
        tune_for_free(space, on.value, tries, folder, data_dir, as_json=as_json)

"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from quietgrad.lab.run.shipped_configs import shipped_configs


def _begun(incomplete: str) -> list[str]:
    """Names of configs that begin so, for the shell; it completes paths where there are none."""
    return [name for name in shipped_configs() if name.startswith(incomplete)]


ConfigFile: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG", help="A TOML file, or a name of quietgrad configs.", autocompletion=_begun
    ),
]
Changes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of the config.")
]
DataDir: TypeAlias = Annotated[
    Path | None, typer.Option(help="Folder in which data sets are looked for first.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]

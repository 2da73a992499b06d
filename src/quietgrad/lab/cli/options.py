"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ConfigFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file, or a name of quietgrad configs.")
]
Changes: TypeAlias = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a value of the config.")
]
DataDir: TypeAlias = Annotated[Path | None, typer.Option(help="Where data sets are looked for first.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON.")]

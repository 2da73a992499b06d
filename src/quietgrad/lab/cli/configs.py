"""`quietgrad configs`: the experiments that come with the package, and a copy of one to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Json
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.shipped_configs import grouped_configs, shipped_config, shipped_configs


def configs(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="To copy; none lists all.")
    ] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder for the copies.")] = Path(),
    as_json: Json = False,
) -> None:
    """List the configs that come with the package, or copy some."""
    from rich.console import Console
    from rich.table import Table

    from quietgrad.lab.files import to_json

    copies = [_copy(name, out) for name in names or []]
    if copies:
        typer.echo(
            to_json([str(copy) for copy in copies]) if as_json else "\n".join(f"Written: {c}" for c in copies)
        )
        return
    if as_json:
        typer.echo(to_json(shipped_configs()))
        return
    console = Console()
    for group, found in grouped_configs().items():
        table = Table("name", "what it is", title=group, title_justify="left")
        for name, title in found.items():
            table.add_row(name, title)
        console.print(table)


def _copy(name: str, folder: Path) -> Path:
    from quietgrad.lab.files import make_folder, write_whole

    content = shipped_config(name)
    target = folder / f"{name.removesuffix('.toml')}.toml"
    if target.exists():
        raise LabError(f"{target} is there already. Give another folder with --out.")
    make_folder(folder)
    write_whole(target, content.encode())
    return target

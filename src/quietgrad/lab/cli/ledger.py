"""`quietgrad ledger`: what all runs on a data set cost together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Json


def ledger(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER", help="Folders of runs, at any depth below.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """List the runs on each data set and their total ε."""
    from rich.console import Console
    from rich.table import Table

    from quietgrad.lab.compare.register import registers
    from quietgrad.lab.files import to_json
    from quietgrad.lab.formatting import epsilon_text, method_title

    found = registers(folders)
    if as_json:
        typer.echo(to_json([register.as_dict() for register in found]))
        return
    console = Console()
    for register in found:
        table = Table("run", "method", "started", "who", "ε", "δ", "releases", title_justify="left")
        table.title = f"{register.data}, unit: one {register.unit}"
        for run in register.runs:
            state = f"{run.releases:,}" if run.finished else f"{run.releases:,}, not finished"
            names = (Path(run.folder).name, method_title(run.method), run.started[:10], run.who or "–")
            table.add_row(*names, epsilon_text(run.epsilon), f"{run.delta:g}", state)
        console.print(table)
        private = f"; those with noise {epsilon_text(register.private_epsilon)}"
        runs = f"All {len(register.runs)} together" if len(register.runs) > 1 else "In all"
        console.print(
            f"{runs}: ε = {epsilon_text(register.epsilon)} at δ = {register.delta:g}"
            f"{private if register.epsilon == math.inf else ''}.",
            highlight=False,
        )
    console.print(
        "Only runs in these folders are counted, each as its whole plan. Runs that were deleted or lie elsewhere "
        "cost as much.",
        highlight=False,
    )

"""`quietgrad audit`: attacks on a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import DataDir, Json


def audit(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run made by quietgrad train.")],
    *,
    confidence: Annotated[
        float, typer.Option(help="Confidence of every bound.", min=0.5, max=0.999999)
    ] = 0.999,
    canaries: Annotated[
        int, typer.Option(help="Canaries of the one-run audit; 0 leaves it out.", min=0)
    ] = 300,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Attack a finished run; exit code 1 if its ε does not hold."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    from quietgrad.lab.files import to_json, write_whole
    from quietgrad.lab.report import write_report
    from quietgrad.lab.run.attack import audit_run, open_run
    from quietgrad.lab.run.progress import TimeLeft
    from quietgrad.lab.run.statement.seals import seal

    columns = (TextColumn("{task.description}"), BarColumn(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def show(attack: str, done: int, total: int) -> None:
            if attack not in tasks:
                tasks[attack] = progress.add_task(attack, total=total)
            progress.update(tasks[attack], completed=done, total=total)

        audited = open_run(run, data_dir=data_dir)
        progress.console.print(audited.setup.parts.sizes, highlight=False)
        result = audit_run(
            audited,
            confidence=confidence,
            one_run_canaries=canaries,
            progress=show,
        )
    write_whole(run / "audit.json", to_json(result.as_dict()).encode())
    seal(run / "audit.json")
    write_report([run])  # which says what the attacks found
    typer.echo(to_json(result.as_dict()) if as_json else str(result))
    if result.verdict == "violated":
        raise typer.Exit(1)

"""`quietgrad federated`: one run over many clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json


def federated(
    config: ConfigFile,
    *,
    changes: Changes = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; runs/federated/NAME if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Simulate federated training; ε protects each client."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from quietgrad.lab.files import to_json
    from quietgrad.lab.formatting import epsilon_text, percent_text
    from quietgrad.lab.report import write_report
    from quietgrad.lab.run.checkpoints import lost_text
    from quietgrad.lab.run.config import load_config
    from quietgrad.lab.run.federated import train_federated
    from quietgrad.lab.run.metrics import metrics_text
    from quietgrad.lab.run.progress import TimeLeft

    folder = out or Path("runs") / "federated" / config.stem
    columns = (TextColumn("{task.description}"), BarColumn(), TimeLeft())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("rounds", total=None)

        def show(done: int, planned: int, epsilon: float, accuracy: float) -> None:
            said = f"rounds, ε {epsilon:.3f}, test accuracy {percent_text(accuracy)}"
            bar.update(task, total=planned, completed=done, description=said)

        outcome = train_federated(
            load_config(config, changes), folder, resume=resume, data_dir=data_dir, progress=show
        )
    page = write_report([folder])
    if as_json:
        typer.echo(to_json({"out": str(folder), "report": str(page), **outcome.__dict__}))
        return
    typer.echo(
        f"{outcome.method}: {metrics_text(outcome.metrics)}, after {outcome.rounds} rounds, "
        f"ε = {epsilon_text(outcome.epsilon)} at δ = {outcome.delta:g} for each of {outcome.clients} clients; "
        f"{outcome.up_per_client / 1e3:.1f} kB up and {outcome.down_per_client / 1e3:.1f} kB down per client and "
        f"round, {outcome.megabytes_up:.1f} MB up and {outcome.megabytes_down:.1f} MB down expected in all."
        f"{lost_text(outcome.lost, outcome.rounds, 'rounds')}"
    )
    typer.echo(f"Results: {folder}. Report: {page}")

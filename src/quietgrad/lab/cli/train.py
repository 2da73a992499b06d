"""`quietgrad train`: one private run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json


def train(
    config: ConfigFile,
    *,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME if left out.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a stopped run.")] = False,
    data_dir: DataDir = None,
    device: Annotated[str, typer.Option(help="Where the model is trained: cpu, cuda, cuda:1.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Train one private model; Ctrl-C stops it cleanly, --resume goes on."""
    from rich.console import Console

    from quietgrad.lab.files import to_json
    from quietgrad.lab.formatting import epsilon_text, method_title
    from quietgrad.lab.report import write_report
    from quietgrad.lab.run.checkpoints import lost_text
    from quietgrad.lab.run.config import load_config
    from quietgrad.lab.run.metrics import metrics_text, one_class_warning
    from quietgrad.lab.run.progress import Bar
    from quietgrad.lab.run.train import train as run

    folder = out or Path("runs") / config.stem
    reporter = Bar(Console(stderr=True))
    loaded = load_config(config, changes)
    outcome = run(loaded, folder, resume=resume, data_dir=data_dir, reporter=reporter, device=device)
    page = write_report([folder])
    if as_json:
        typer.echo(to_json({"out": str(folder), "report": str(page), **outcome.__dict__}))
        return
    typer.echo(
        f"{method_title(outcome.method)}: {metrics_text(outcome.metrics)}; "
        f"ε = {epsilon_text(outcome.epsilon)} at δ = {outcome.delta:g}, {outcome.seconds:.0f} s."
        f"{lost_text(outcome.lost, outcome.steps + outcome.lost, 'steps')}"
    )
    if (warning := one_class_warning(outcome.metrics)) is not None:
        typer.echo(warning)
    typer.echo(f"Results: {folder}. Report: {page}")

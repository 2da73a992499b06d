"""`quietgrad compare`: a leaderboard at equal budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json
from quietgrad.lab.compare.compare import Curves, jobs
from quietgrad.lab.compare.compare import compare as run_comparison
from quietgrad.lab.compare.comparison import Comparison, majority_text, totals
from quietgrad.lab.compare.leaderboard import Bars, table
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import to_json
from quietgrad.lab.report import write_report
from quietgrad.lab.report.plots import accuracy_against_epsilon, save_png
from quietgrad.lab.run.config import Config, load_config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.presets import compared_methods

METHODS = ",".join(compared_methods())


def compare(
    config: ConfigFile,
    *,
    changes: Changes = None,
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = METHODS,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method and budget.")] = 1,
    epsilons: Annotated[
        str, typer.Option(help="Budgets, separated by commas; the config's if left out.")
    ] = "",
    out: Annotated[Path | None, typer.Option(help="Folder; runs/compare-NAME if left out.")] = None,
    data_dir: DataDir = None,
    private_only: Annotated[
        bool, typer.Option("--private-only", help="Leave the non-private baseline out: its ε is ∞.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A leaderboard at equal (ε, δ); started again, it goes on where it was stopped."""
    base = load_config(config, changes)
    if base.data.test == 0:
        raise LabError(
            "data.test = 0 leaves nothing to compare methods on. Set data.test to a number of rows."
        )
    folder = out or Path("runs") / f"compare-{config.stem}"
    targets, baseline = _budgets(epsilons, base), not private_only
    made = show_progress(base, _names(methods), targets, seeds, folder, data_dir, baseline=baseline)
    save_png(accuracy_against_epsilon(made.rows), folder / "accuracy.png")
    page = write_report([folder])
    if as_json:
        typer.echo(to_json({"out": str(folder), "report": str(page), **made.as_dict()}))
        return
    first = next(name for row in made.rows for name in row.runs)
    show(made, Console(), RunFolder(folder / first).read("split.json").get("sizes", ""))
    typer.echo(f"Everything is in {folder}; to read: {page}")


def show_progress(
    base: Config,
    methods: list[str],
    epsilons: list[float],
    seeds: int,
    out: Path,
    data_dir: Path | None,
    *,
    baseline: bool = True,
    curves: Curves | None = None,
) -> Comparison:
    """Run the comparison with one bar per run."""
    planned = jobs(base, methods, epsilons, seeds, out, data_dir, baseline=baseline, curves=curves)
    names = [job.out.name for job in planned]
    with Bars(names, Console(stderr=True)) as bars:
        return run_comparison(
            base,
            methods,
            epsilons,
            seeds,
            out,
            bars.show,
            data_dir=data_dir,
            baseline=baseline,
            curves=curves,
        )


def show(made: Comparison, console: Console, sizes: str = "") -> None:
    """The table, and what all its runs cost together."""
    if sizes:
        console.print(sizes, highlight=False)
    console.print(table(made.rows))
    console.print(
        f"{majority_text(made)}δ = {made.delta:g}. {totals(made)}",
        highlight=False,
    )


def _names(methods: str) -> list[str]:
    names = list(dict.fromkeys(name.strip().replace("-", "_") for name in methods.split(",") if name.strip()))
    if not names:
        raise LabError("Expected --methods with at least one name, got none.")
    return names


def _budgets(text: str, base: Config) -> list[float]:
    if not text:
        if base.privacy.epsilon is None:
            raise LabError("The config has no privacy.epsilon. Give --epsilons 1,2,4.")
        return [base.privacy.epsilon]
    try:
        values = sorted({float(value) for value in text.split(",")})
    except ValueError:
        values = []
    if not values or values[0] <= 0:
        raise LabError(f"Expected --epsilons with positive numbers and commas, got {text!r}.")
    return values

"""`quietgrad compare`: a leaderboard at equal budgets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json
from quietgrad.lab.errors import LabError

if TYPE_CHECKING:
    from quietgrad.lab.run.config import Config


def compare(
    config: ConfigFile,
    *,
    changes: Changes = None,
    methods: Annotated[
        str, typer.Option(help="Names, separated by commas; those with a good preset if left out.")
    ] = "",
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
    """Compare methods at equal (ε, δ); started again, it continues."""
    from rich.console import Console

    from quietgrad.lab.cli.compare_view import show, show_progress
    from quietgrad.lab.files import to_json
    from quietgrad.lab.report import write_report
    from quietgrad.lab.report.plots import accuracy_against_epsilon, save_png
    from quietgrad.lab.run.config import load_config
    from quietgrad.lab.run.folder import RunFolder

    base = load_config(config, changes)
    if base.data.test == 0:
        raise LabError(
            "data.test = 0 leaves nothing to compare methods on. Set data.test to a number of rows."
        )
    if base.predicts_number:
        raise LabError(
            f"columns.{base.data.label} is a number, and methods are compared by the classes they get right. Train "
            "with quietgrad train."
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
    typer.echo(f"Results: {folder}. Report: {page}")


def _names(methods: str) -> list[str]:
    if not methods:
        from quietgrad.lab.run.presets import compared_methods

        return compared_methods()
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

"""How a comparison looks while it runs, and its table."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from quietgrad.lab.compare.compare import Curves, jobs
from quietgrad.lab.compare.compare import compare as run_comparison
from quietgrad.lab.compare.comparison import Comparison, majority_text, refusals, totals
from quietgrad.lab.compare.leaderboard import Bars, table
from quietgrad.lab.run.config import Config


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
    for line in refusals(made):
        console.print(line, highlight=False, markup=False)
    console.print(
        f"{majority_text(made)}δ = {made.delta:g}. {totals(made)}",
        highlight=False,
    )

"""`quietgrad explain`: what each layer and each method would cost, before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from quietgrad.lab.cli.options import Changes, ConfigFile, DataDir, Json
from quietgrad.lab.files import to_json
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.linear_probe_preview import LinearProbePlan, explain_linear_probe
from quietgrad.lab.run.presets import QUIET
from quietgrad.lab.run.preview import Explained, explain_config


def explain(
    config: ConfigFile, *, changes: Changes = None, data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Per layer the algorithm, time and memory; per method what it releases and how loud its noise is."""
    loaded = load_config(config, changes)
    explained: Explained | LinearProbePlan
    if loaded.method.name == QUIET:
        explained = explain_linear_probe(loaded, data_dir=data_dir)
    else:
        explained = explain_config(loaded, data_dir=data_dir)
    if as_json:
        typer.echo(to_json(explained.as_dict()))
    elif isinstance(explained, LinearProbePlan):
        show_quiet(explained, Console())
    else:
        show(explained, Console())


def show_quiet(explained: LinearProbePlan, console: Console) -> None:
    """The joint plan, and the settings that the rule found."""
    console.print(explained.sizes, highlight=False)
    console.print(
        f"quiet: {explained.records:,} records of {explained.classes} classes; features {explained.encoder} "
        f"{list(explained.row)}, moments {explained.moments}, at most {explained.directions} directions rescaled to "
        f"{explained.dimension:.0f} effective dimensions; {explained.steps} steps on all records, "
        f"lr {explained.lr:.3g}, clip {explained.clip:g}.",
        highlight=False,
    )
    rows = [
        {
            "release": release.name,
            "what": release.what,
            "share": f"{release.share:.0%}",
            "σ": release.noise_multiplier,
            "times": release.times,
        }
        for release in explained.releases
    ]
    console.print(_table(rows, f"one plan, ε = {explained.epsilon:g} at δ = {explained.delta:g} in all"))
    console.print("share: part of the squared budget. All lines are in one ledger.", highlight=False)
    for remark in explained.remarks:
        console.print(remark, highlight=False)


def show(explained: Explained, console: Console) -> None:
    """Two tables and what their columns mean."""
    console.print(explained.sizes, highlight=False)
    console.print(
        f"{explained.model}: {explained.parameters:,} parameters; ε = {explained.epsilon:g} at "
        f"δ = {explained.delta:g}, {explained.steps} steps of {explained.batch:g} {explained.units} on average. "
        f"Protected: each {explained.unit}. "
        f"Independence of samples: {explained.independence}.",
        highlight=False,
    )
    console.print(_table(explained.layers, f"engine, for {explained.rows} records at a time"))
    console.print(_table([method.cells() for method in explained.methods], "methods, per step"))
    console.print(
        "noise: expected length of the noise that reaches p.grad, times the batch; the signal there is at most "
        "batch × sensitivity long.",
        highlight=False,
    )
    for method in explained.methods:
        if method.problem:
            console.print(f"{method.method}: {method.problem}", highlight=False)


def _table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ():
        table.add_column(
            name, justify="left" if name in ("layer", "algorithm", "method", "release", "what") else "right"
        )
    for row in rows:
        table.add_row(
            *(f"{value:,.3g}" if isinstance(value, float) else f"{value}" for value in row.values())
        )
    return table

"""How an explained config looks: tables, and what their columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from quietgrad.lab.run.linear_probe_preview import LinearProbePlan
from quietgrad.lab.run.preview import Explained


def show_quiet(explained: LinearProbePlan, console: Console) -> None:
    """The joint plan, and the settings that the rule found."""
    console.print("This is the private linear probe, the first thing to try.", highlight=False)
    console.print(explained.sizes, highlight=False)
    console.print(
        f"quiet: {explained.records:,} {explained.many}, {_wanted(explained)}; features {explained.encoder} "
        f"{list(explained.row)}; {explained.steps} steps on all {explained.many}.",
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


def _wanted(explained: LinearProbePlan) -> str:
    """What is predicted, and the settings that belong to it."""
    if explained.classes == 0:
        return "a number to predict; moments precondition the steps"
    return (
        f"{explained.classes} classes; moments {explained.moments}, at most {explained.directions} directions rescaled "
        f"to {explained.dimension:.0f} effective dimensions, lr {explained.lr:.3g}, clip {explained.clip:g}"
    )


def show(explained: Explained, console: Console, *, layers: bool = False) -> None:
    """What to try first, a table of methods, and one of layers if it is wanted."""
    console.print(explained.recommendation, highlight=False, soft_wrap=True)
    console.print()
    console.print(explained.sizes, highlight=False)
    console.print(
        f"{explained.model}: {explained.parameters:,} parameters; ε = {explained.epsilon:g} at "
        f"δ = {explained.delta:g}, {explained.steps} steps of {explained.batch:g} {explained.units} on average. "
        f"Protected: each {explained.unit}. "
        f"Independence of samples: {explained.independence}.",
        highlight=False,
    )
    if layers:
        console.print(_table(explained.layers, f"engine, for {explained.rows} records at a time"))
    console.print(_table([method.cells() for method in explained.methods], "methods, per step"))
    console.print(
        "noise / signal: length of a step's noise in p.grad over the longest signal that the clips let through. A "
        "method with less noise may also drop signal: see bias.",
        highlight=False,
    )
    for method in explained.methods:
        if method.problem:
            console.print(f"{method.method}: {method.problem}", highlight=False)


def _table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for name in rows[0] if rows else ():
        table.add_column(
            name,
            no_wrap=name == "method",
            justify="left"
            if name in ("layer", "algorithm", "method", "release", "what", "bias")
            else "right",
        )
    for row in rows:
        table.add_row(
            *(f"{value:,.3g}" if isinstance(value, float) else f"{value}" for value in row.values())
        )
    return table

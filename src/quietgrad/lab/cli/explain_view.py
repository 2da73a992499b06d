"""How an explained config looks: tables, and what their columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.run.linear_probe_preview import LinearProbePlan
from quietgrad.lab.run.preview import Explained


def show_quiet(explained: LinearProbePlan, console: Console) -> None:
    """The joint plan, and the settings that the rule found."""
    console.print("This config trains the private linear probe, the method to try first.", highlight=False)
    console.print(explained.sizes, highlight=False)
    console.print(
        f"Features: {explained.encoder}, {_size(explained.row)}. {_wanted(explained)} "
        f"{explained.steps} steps on all {explained.records:,} {explained.many}.",
        highlight=False,
        soft_wrap=True,
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
    console.print(
        _table(rows, f"one plan, ε = {epsilon_text(explained.epsilon)} at δ = {explained.delta:g} in all")
    )
    console.print(
        "share: part of the squared budget; times: how often it is released. All releases are in one ledger.",
        highlight=False,
    )
    for remark in explained.remarks:
        console.print(remark, highlight=False)


def _wanted(explained: LinearProbePlan) -> str:
    """What is predicted, and the settings that belong to it."""
    if explained.classes == 0:
        return "Predicts a number; released moments precondition the steps."
    return (
        f"Moments: {explained.moments}; at most {explained.directions} directions, rescaled to "
        f"{explained.dimension:.0f} effective dimensions. Head: {explained.classes} classes, learning rate "
        f"{explained.lr:.3g}, clip {explained.clip:g}."
    )


def _size(row: Sequence[int]) -> str:
    return f"{' × '.join(map(str, row))} numbers a record"


def show(explained: Explained, console: Console, *, layers: bool = False) -> None:
    """What to try first, a table of methods, and one of layers if it is wanted."""
    console.print(explained.recommendation, highlight=False, soft_wrap=True)
    console.print()
    console.print(explained.sizes, highlight=False)
    console.print(
        f"{explained.model}: {explained.parameters:,} parameters; ε = {epsilon_text(explained.epsilon)} at "
        f"δ = {explained.delta:g}, {explained.steps} steps of {explained.batch:g} {explained.units} on average. "
        f"Protected: each {explained.unit}. "
        f"Independence of samples: {explained.independence}.",
        highlight=False,
    )
    if explained.noise:
        console.print(f"Noise: {explained.noise}.", highlight=False)
    if layers:
        console.print(_table(explained.layers, f"engine, for {explained.rows} records at a time"))
    usable = [method.cells() for method in explained.methods if not method.problem]
    console.print(_table(usable, "methods, per step"))
    console.print(
        "noise / signal: length of a step's noise in p.grad over the longest signal that the clips let through. A "
        "method with less noise may also drop signal: see bias.",
        highlight=False,
    )
    for method in explained.methods:
        if method.problem:
            problem = method.problem.removeprefix(f"{method.method} ")
            console.print(f"Not here: {method.method}: {problem}", highlight=False)


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

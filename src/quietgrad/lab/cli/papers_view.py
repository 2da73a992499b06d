"""How the papers look: a table of entries, one entry, a finding."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from quietgrad.accounting.disk import disk
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, to_json
from quietgrad.lab.formatting import duration_text
from quietgrad.lab.papers.claims import Paper, PaperEntry
from quietgrad.lab.papers.committed import (
    PARTIAL,
    Result,
    command_of,
    committed,
    keep_partial,
    status_of,
    verdict_of,
    verdict_text,
    write_result,
)
from quietgrad.lab.papers.draw import draw
from quietgrad.lab.papers.experiment import Experiment, Place
from quietgrad.lab.papers.finding import SCALES, Finding, Scale
from quietgrad.lab.papers.registry import experiment_of
from quietgrad.lab.papers.trainings import Trainings
from quietgrad.lab.papers.verdicts import judge_each


def list_entries(chosen: tuple[Paper, ...], as_json: bool) -> None:
    results = committed()
    rows = [_row(one, item, results.get((one.id, item.id))) for one in chosen for item in one.entries]
    if as_json:
        typer.echo(to_json(rows))
        return
    table = Table("paper", "entry", "what it is", "verdict", "status")
    for row in rows:
        said = verdict_text(row["verdict"], results.get((row["paper"], row["entry"])))
        table.add_row(row["paper"], row["entry"], row["title"], said, row["status"])
    Console().print(table)
    typer.echo("quietgrad papers PAPER ENTRY shows one; with --scale quick|reduced|full it runs.")


def _row(one: Paper, item: PaperEntry, result: Result | None) -> dict[str, Any]:
    verdict, why = verdict_of(item, result)
    experiment = experiment_of(one.id, item.id)
    return {
        "paper": one.id,
        "entry": item.id,
        "kind": item.kind,
        "title": item.title,
        "status": status_of(item, result),
        "verdict": verdict,
        "scale": None if result is None else result.scale,
        "claims": [] if result is None else _claims(experiment, result),
        "why": why,
        "settings": "" if result is None else result.finding.settings,
        "theirs": item.theirs,
        "ours": item.ours,
        "rows": [] if result is None else [row.__dict__ for row in result.finding.rows],
        "command": item.check if result is None else result.command,
        "scales": [] if experiment is None else list(experiment.scales),
    }


def _claims(experiment: Experiment | None, result: Result) -> list[dict[str, str]]:
    """Each claim about two rows of a table of accuracies, with its own verdict."""
    if not isinstance(experiment, Trainings):
        return []
    judged = judge_each(result.finding.rows, experiment.claims)
    return [{"verdict": verdict, "why": why} for verdict, why in judged]


def show_entry(one: Paper, item: PaperEntry, experiment: Experiment | None, as_json: bool) -> None:
    result = committed().get((one.id, item.id))
    row = _row(one, item, result)
    if as_json:
        typer.echo(to_json(row))
        return
    typer.echo(f"{one.title} ({one.year}): {item.title}\ntheirs: {item.theirs}\nours: {item.ours}")
    if result is not None:
        _print_rows(result.finding, result.scale)
    typer.echo(f"{verdict_text(row['verdict'], result)}: {row['why']}\nchecked by: {row['command']}")
    if experiment is not None:
        typer.echo(f"Run it with --scale {' or '.join(experiment.scales)}.")


def checked_scale(text: str) -> Scale:
    for scale in SCALES:
        if scale == text:
            return scale
    raise LabError(f"Expected --scale {', '.join(SCALES)}, got {text!r}.")


def place_of(out: Path, data_dir: Path | None) -> Place:
    """Where an experiment runs, with its progress on stderr."""
    console = Console(stderr=True)
    return Place(
        out=out, data_dir=data_dir, tell=lambda text: console.print(text, highlight=False, markup=False)
    )


def run_entry(
    one: Paper,
    item: PaperEntry,
    experiment: Experiment | None,
    scale: Scale,
    place: Place,
    as_json: bool,
) -> None:
    if experiment is None:
        raise LabError(f"{one.id} {item.id} has no experiment; it is checked by {item.check}.")
    place.tell(
        f"{item.title}, {scale}: about {duration_text(experiment.seconds(scale, place))} on this machine"
    )
    make_folder(place.out)
    started = time.perf_counter()

    def result_of(finding: Finding) -> Result:
        took = round(time.perf_counter() - started, 1)
        return Result(
            paper=one.id,
            entry=item.id,
            scale=scale,
            command=command_of(one.id, item.id, scale),
            seconds=took if finding.seconds is None else finding.seconds,
            finding=finding,
        )

    def keep(found: Finding) -> None:
        keep_partial(result_of(found), place.out)

    finding = experiment.run(scale, dataclasses.replace(place, keep=keep))
    result = result_of(finding)
    written = write_result(result, place.out)
    disk().remove(place.out / f"{result.name}.{PARTIAL}")
    picture = draw(finding, written.with_suffix(".png"), one.heading(item))
    if as_json:
        typer.echo(to_json(result.as_dict()))
        return
    _print_rows(finding, scale)
    typer.echo(f"{verdict_text(finding.verdict, result)}: {finding.why}")
    typer.echo(f"Written: {written}{f' and {picture}' if picture else ''}")


THEIRS = {
    "full": "theirs",
    "reduced": "theirs, at full scale: not comparable number by number",
    "quick": "theirs, on other data and at full scale: not comparable",
}
"""Headings of the papers' numbers: beside ours at another scale they must not read like a target that was missed."""


def _print_rows(finding: Finding, scale: Scale) -> None:
    table = Table("", THEIRS[scale], "ours", "")
    for row in finding.rows:
        theirs = "–" if row.theirs is None else f"{row.theirs:g}"
        spread = "" if row.spread is None else f" ± {row.spread:.2g}"
        table.add_row(row.label, theirs, f"{row.ours:g}{spread}", row.note)
    console = Console()
    console.print(f"{finding.unit}. {finding.settings}", highlight=False)
    console.print(table)

"""`quietgrad papers`: the five papers, entry by entry, and their experiments run here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from quietgrad.lab.cli.options import DataDir, Json
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, to_json
from quietgrad.lab.formatting import duration_text
from quietgrad.lab.papers.claims import Paper, PaperEntry, paper
from quietgrad.lab.papers.claims import papers as all_papers
from quietgrad.lab.papers.committed import Result, command_of, committed, status_of, verdict_of, write_result
from quietgrad.lab.papers.draw import draw
from quietgrad.lab.papers.experiment import Experiment, Place
from quietgrad.lab.papers.finding import SCALES, Finding, Scale
from quietgrad.lab.papers.registry import experiment_of


def papers(
    name: Annotated[str | None, typer.Argument(metavar="[PAPER]", help="gep, rgp, pdp_sgd, ...")] = None,
    entry: Annotated[
        str | None, typer.Argument(metavar="[ENTRY]", help="table1, figure4, lemma3.1, ...")
    ] = None,
    *,
    scale: Annotated[str | None, typer.Option(help="Run it: quick, reduced or full.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of results and runs; entries that share a run train it once.")
    ] = Path("papers"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """What the five papers claim and what was found here; with --scale, run one of their tables or figures."""
    if name is None:
        _list(tuple(all_papers().values()), as_json)
        return
    chosen = paper(name)
    if entry is None:
        _list((chosen,), as_json)
        return
    item = chosen.entry(entry)
    experiment = experiment_of(chosen.id, item.id)
    if scale is None:
        _show(chosen, item, experiment, as_json)
        return
    _run(chosen, item, experiment, _scale(scale), out, data_dir, as_json)


def _list(chosen: tuple[Paper, ...], as_json: bool) -> None:
    results = committed()
    rows = [_row(one, item, results.get((one.id, item.id))) for one in chosen for item in one.entries]
    if as_json:
        typer.echo(to_json(rows))
        return
    table = Table("paper", "entry", "what it is", "verdict", "status")
    for row in rows:
        table.add_row(row["paper"], row["entry"], row["title"], row["verdict"], row["status"])
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
        "why": why,
        "theirs": item.theirs,
        "ours": item.ours,
        "rows": [] if result is None else [row.__dict__ for row in result.finding.rows],
        "command": item.check if result is None else result.command,
        "scales": [] if experiment is None else list(experiment.scales),
    }


def _show(one: Paper, item: PaperEntry, experiment: Experiment | None, as_json: bool) -> None:
    result = committed().get((one.id, item.id))
    row = _row(one, item, result)
    if as_json:
        typer.echo(to_json(row))
        return
    typer.echo(f"{one.title} ({one.year}): {item.title}\ntheirs: {item.theirs}\nours: {item.ours}")
    if result is not None:
        _print_rows(result.finding)
    typer.echo(f"{row['verdict']}: {row['why']}\nchecked by: {row['command']}")
    if experiment is not None:
        typer.echo(f"Run it with --scale {' or '.join(experiment.scales)}.")


def _scale(text: str) -> Scale:
    for scale in SCALES:
        if scale == text:
            return scale
    raise LabError(f"Expected --scale {', '.join(SCALES)}, got {text!r}.")


def _run(
    one: Paper,
    item: PaperEntry,
    experiment: Experiment | None,
    scale: Scale,
    out: Path,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    if experiment is None:
        raise LabError(f"{one.id} {item.id} has no experiment; it is checked by {item.check}.")
    console = Console(stderr=True)
    place = Place(
        out=out,
        data_dir=data_dir,
        tell=lambda text: console.print(text, highlight=False),
    )
    place.tell(
        f"{item.title}, {scale}: about {duration_text(experiment.seconds(scale, place))} on this machine"
    )
    make_folder(place.out)
    started = time.perf_counter()
    finding = experiment.run(scale, place)
    result = Result(
        paper=one.id,
        entry=item.id,
        scale=scale,
        command=command_of(one.id, item.id, scale),
        seconds=round(time.perf_counter() - started, 1),
        finding=finding,
    )
    written = write_result(result, place.out)
    picture = draw(finding, written.with_suffix(".png"), one.heading(item))
    if as_json:
        typer.echo(to_json(result.as_dict()))
        return
    _print_rows(finding)
    typer.echo(f"{finding.verdict}: {finding.why}")
    typer.echo(f"Written: {written}{f' and {picture}' if picture else ''}")


def _print_rows(finding: Finding) -> None:
    table = Table("", "theirs", "ours", "")
    for row in finding.rows:
        theirs = "–" if row.theirs is None else f"{row.theirs:g}"
        spread = "" if row.spread is None else f" ± {row.spread:.2g}"
        table.add_row(row.label, theirs, f"{row.ours:g}{spread}", row.note)
    console = Console()
    console.print(f"{finding.unit}. {finding.settings}", highlight=False)
    console.print(table)

"""`quietgrad papers`: the five papers, entry by entry, and their experiments run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import DataDir, Json


def papers(
    name: Annotated[
        str | None,
        typer.Argument(metavar="PAPER", help="gep, rgp, pdp_sgd, ...; or queue, to run several."),
    ] = None,
    entry: Annotated[
        list[str] | None,
        typer.Argument(metavar="ENTRY", help="table1, figure4, ...; of a queue gep.table1.quick, ..."),
    ] = None,
    *,
    scale: Annotated[str | None, typer.Option(help="Run it: quick, reduced or full.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Queue: entries at a time, one thread each.")] = 1,
    minutes: Annotated[
        float, typer.Option(min=0.0, help="Queue: minutes after which an entry makes room for the next.")
    ] = 80.0,
    out: Annotated[
        Path, typer.Option(help="Folder of results and runs; entries that share a run train it once.")
    ] = Path("papers"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the claims of the five papers; with --scale, run a table or figure again."""
    from quietgrad.lab.cli.papers_view import checked_scale, list_entries, place_of, run_entry, show_entry
    from quietgrad.lab.errors import LabError
    from quietgrad.lab.papers.claims import paper
    from quietgrad.lab.papers.claims import papers as all_papers
    from quietgrad.lab.papers.registry import experiment_of

    wanted = None if scale is None else checked_scale(scale)
    if name == "queue":
        from quietgrad.lab.cli.papers_queue import run_queue

        run_queue(entry or (), wanted, place_of(out, data_dir), jobs=jobs, minutes=minutes, as_json=as_json)
        return
    if name is None:
        list_entries(tuple(all_papers().values()), as_json)
        return
    chosen = paper(name)
    if not entry:
        list_entries((chosen,), as_json)
        return
    if len(entry) > 1:
        raise LabError(f"Expected one entry, got {', '.join(entry)}. quietgrad papers queue runs several.")
    item = chosen.entry(entry[0])
    experiment = experiment_of(chosen.id, item.id)
    if wanted is None:
        show_entry(chosen, item, experiment, as_json)
        return
    run_entry(chosen, item, experiment, wanted, place_of(out, data_dir), as_json)

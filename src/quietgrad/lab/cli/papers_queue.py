"""How a queue of the papers' entries looks while it runs and at its end."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table

from quietgrad.lab.files import to_json
from quietgrad.lab.formatting import duration_text
from quietgrad.lab.papers.experiment import Place
from quietgrad.lab.papers.finding import Scale
from quietgrad.lab.papers.queue import Queue, items_of


def run_queue(
    names: Sequence[str], scale: Scale | None, place: Place, *, jobs: int, minutes: float, as_json: bool
) -> None:
    """Run what is not done; exit code 1 if an entry failed."""
    queue = Queue(items_of(names, scale), place, jobs=jobs, minutes=minutes)
    queue.run()
    rows = queue.as_rows()
    if as_json:
        typer.echo(to_json(rows))
    else:
        table = Table("entry", "status", "verdict", "training time")
        for row in rows:
            took = "" if row.get("seconds") is None else duration_text(row["seconds"])
            said = row.get("verdict", row.get("error", f"{row['rows']} rows so far" if "rows" in row else ""))
            table.add_row(row["item"], row["status"], said, took)
        Console().print(table)
    if any(row["status"] == "failed" for row in rows):
        raise typer.Exit(1)

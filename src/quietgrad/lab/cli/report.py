"""`quietgrad report`: one self-contained page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Json


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs or comparisons.")],
    *,
    out: Annotated[Path | None, typer.Option(help="The file; RUN/report.html if left out.")] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page about runs or a comparison."""
    from quietgrad.lab.files import to_json
    from quietgrad.lab.report import write_report

    page = write_report(runs, out)
    typer.echo(to_json({"report": str(page)}) if as_json else f"Written: {page}")

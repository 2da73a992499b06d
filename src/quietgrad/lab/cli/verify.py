"""`quietgrad verify`: whether the privacy claim of a run stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from quietgrad.lab.cli.options import Json
from quietgrad.lab.files import to_json
from quietgrad.lab.run.statement.verification import verify as check


def verify(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run made by quietgrad train or federated.")
    ],
    *,
    as_json: Json = False,
) -> None:
    """Hold ledger, privacy.json, weights and config of a run against each other. Exits with 1 if the claim falls."""
    found = check(run)
    answer = {"stands": found.stands, "said": found.said, "problems": found.problems}
    typer.echo(to_json(answer) if as_json else found.said)
    if not found.stands:
        raise typer.Exit(1)

"""`quietgrad verify`: whether the privacy claim of a run, or of every run of a comparison, stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quietgrad.lab.cli.options import Json

if TYPE_CHECKING:
    from quietgrad.lab.compare.verification import TableVerdict
    from quietgrad.lab.run.statement.verification import Verdict


def verify(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run made by quietgrad train or federated, or of a comparison."
        ),
    ],
    *,
    as_json: Json = False,
) -> None:
    """Check that a run's files support its claim; exit code 1 if not."""
    from quietgrad.lab.files import to_json
    from quietgrad.lab.report.check import verify_folder

    found = verify_folder(run)
    if as_json:
        typer.echo(to_json(_plain(found)))
    else:
        typer.echo("\n".join([*_lines(found), found.said]))
    if not found.stands:
        raise typer.Exit(1)


def _plain(found: Verdict | TableVerdict) -> dict[str, Any]:
    answer = {"stands": found.stands, "said": found.said, "problems": found.problems}
    runs = getattr(found, "runs", None)  # of a comparison
    if runs is not None:
        answer["runs"] = {
            name: {**_plain(verdict), "claims": not verdict.claims_nothing} for name, verdict in runs.items()
        }
    return answer


def _lines(found: Verdict | TableVerdict) -> list[str]:
    """One for each run of a comparison."""
    runs: dict[str, Verdict] = getattr(found, "runs", {})
    return [f"{_answer(verdict)} {name}: {_why(verdict)}" for name, verdict in runs.items()]


def _answer(found: Verdict) -> str:
    return "yes     " if found.stands else "no claim" if found.claims_nothing else "no      "


def _why(found: Verdict) -> str:
    return f"{found.problems[0]}." if found.claims_nothing else found.said

"""The command line: one line per command, one clear line per error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from quietgrad import __version__
from quietgrad.lab.cli.audit import audit
from quietgrad.lab.cli.budget import budget
from quietgrad.lab.cli.columns import columns
from quietgrad.lab.cli.compare import compare
from quietgrad.lab.cli.configs import configs
from quietgrad.lab.cli.data import data
from quietgrad.lab.cli.explain import explain
from quietgrad.lab.cli.federated import federated
from quietgrad.lab.cli.ledger import ledger
from quietgrad.lab.cli.papers import papers
from quietgrad.lab.cli.predict import export, predict
from quietgrad.lab.cli.report import report
from quietgrad.lab.cli.train import train
from quietgrad.lab.cli.tune import tune
from quietgrad.lab.cli.verify import verify
from quietgrad.lab.errors import one_line

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _print_version(asked: bool) -> bool:
    """What comes back is the option's value."""
    if asked:
        typer.echo(f"quietgrad {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def quietgrad(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Train PyTorch models with differential privacy, with more signal per ε."""


def add(panel: str, *commands: Callable[..., None]) -> None:
    """Register commands under their names and a heading of the help, with `--debug` and errors as one line."""
    for command in commands:
        app.command(rich_help_panel=panel)(_explained(command))


def _explained(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a `--debug` option; without it a user's error is one line and exit code 2."""

    @functools.wraps(command)
    def run(*, debug: bool, **options: Any) -> None:
        try:
            command(**options)
        except (ValueError, OSError) as error:
            if debug:
                raise
            typer.echo(f"Error: {one_line(error)}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stopped:
            typer.echo(str(stopped) or "Stopped. Start the command again to go on.", err=True)
            raise typer.Exit(130) from stopped

    hints = {**get_type_hints(command, include_extras=True), "debug": Debug}
    signature = inspect.signature(command)
    parameters = [
        p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY)
        for p in signature.parameters.values()
    ]
    parameters.append(
        inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    )
    # typer reads the signature: it must show the command's own options and the one added here.
    vars(run).pop("__wrapped__")
    run.__annotations__ = hints
    vars(run)["__signature__"] = signature.replace(parameters=parameters)
    return run


add("Train", train, compare, tune, federated)
add("Plan", explain, budget, configs, data, columns)
add("Check", report, verify, audit, ledger)
add("Use the model", predict, export)
add("Research", papers)

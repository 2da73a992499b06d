"""`quietgrad budget`: the noise for an ε, the ε for a noise, the steps or batch of a budget."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from quietgrad.accounting.evaluate import Accountant
from quietgrad.lab.cli.budget_view import draw, show
from quietgrad.lab.files import to_json
from quietgrad.lab.run.privacy_budget import Question, release_shares, solve


def budget(
    *,
    examples: Annotated[int | None, typer.Option(help="Records in the private set.")] = None,
    batch: Annotated[float | None, typer.Option(help="Expected batch size.")] = None,
    rate: Annotated[float | None, typer.Option(help="Poisson rate, instead of examples and batch.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Expected passes over the records.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, instead of epochs.")] = None,
    delta: Annotated[float, typer.Option(help="Well below 1 / examples.")] = 1e-5,
    epsilon: Annotated[float | None, typer.Option(help="The budget.")] = None,
    noise: Annotated[float | None, typer.Option(help="Effective noise multiplier; 0: epsilon = inf.")] = None,
    method: Annotated[str, typer.Option(help="A method of quietgrad.methods.")] = "dp_sgd",
    split: Annotated[str, typer.Option(help="gep: share of the embedding, 'paper' or a number.")] = "paper",
    accountant: Annotated[str, typer.Option(help="best, pld or rdp.")] = "best",
    plot: Annotated[Path | None, typer.Option(help="Draw epsilon over the steps into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The noise for an epsilon, the epsilon for a noise, or the steps or batch that both allow.

    Leave out what is wanted: --noise, --epsilon, --steps/--epochs, or --batch/--rate.
    """
    question = Question(
        examples=examples,
        batch=batch,
        rate=rate,
        epochs=epochs,
        steps=steps,
        delta=delta,
        epsilon=epsilon,
        noise=noise,
        accountant=_accountant(accountant),
    )
    solved = solve(question, method, release_shares(method, split))
    if plot is not None:
        draw(solved, plot)
    if as_json:
        typer.echo(to_json(asdict(solved)))
    else:
        show(solved, Console())


def _accountant(name: str) -> Accountant:
    for known in get_args(Accountant):
        if name == known:
            return name  # type: ignore[return-value]
    raise ValueError(f"Expected --accountant best, pld or rdp, got {name!r}.")

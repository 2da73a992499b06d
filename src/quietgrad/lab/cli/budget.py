"""`quietgrad budget`: the noise for an ε, the ε for a noise, the steps or batch of a budget."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

if TYPE_CHECKING:
    from quietgrad.accounting.evaluate import Accountant
    from quietgrad.lab.run.privacy_budget import Question


def budget(
    *,
    examples: Annotated[int | None, typer.Option(help="Records in the private set.")] = None,
    batch: Annotated[float | None, typer.Option(help="Expected batch size.")] = None,
    rate: Annotated[float | None, typer.Option(help="Poisson rate, instead of examples and batch.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Expected passes over the records.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps, instead of epochs.")] = None,
    delta: Annotated[float, typer.Option(help="δ, well below 1 / examples.")] = 1e-5,
    epsilon: Annotated[float | None, typer.Option(help="The budget ε.")] = None,
    advantage: Annotated[
        float | None,
        typer.Option(help="Instead of --epsilon: true minus false positive rate of the best attack."),
    ] = None,
    found: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: share of members that an attack may find.")
    ] = None,
    false_positives: Annotated[
        float | None,
        typer.Option(
            "--at-false-positives", help="With --found: share of non-members that it may accuse wrongly."
        ),
    ] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise multiplier of a step; 0 means no privacy.")
    ] = None,
    method: Annotated[str, typer.Option(help="A method of quietgrad.methods.")] = "dp_sgd",
    bands: Annotated[
        str,
        typer.Option(help='Bands of correlated noise, with as many groups of records; "best" chooses.'),
    ] = "1",
    at_most: Annotated[int | None, typer.Option(help="Records that a step uses at most.")] = None,
    once_an_epoch: Annotated[
        bool, typer.Option("--once-an-epoch", help="Each record takes part once in 1/rate steps.")
    ] = False,
    split: Annotated[
        str, typer.Option(help="For gep: share of the embedding, 'paper' or a number.")
    ] = "paper",
    accountant: Annotated[str, typer.Option(help="best, pld or rdp.")] = "best",
    plot: Annotated[Path | None, typer.Option(help="Draw ε over the steps into this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plan noise, ε, steps or batch size before training.

    Leave out what you want to know: --noise, --epsilon, --steps/--epochs, or --batch/--rate.
    A bound on membership attacks may replace --epsilon: --advantage 0.1, or --found 0.05 --at-false-positives 0.01.
    """
    from rich.console import Console

    from quietgrad.lab.cli.budget_view import draw, show
    from quietgrad.lab.files import to_json
    from quietgrad.lab.run.privacy_budget import Question, release_shares, solve

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
        advantage=advantage,
        found=found,
        false_positives=false_positives,
        bands=1,
        at_most=at_most,
        once_an_epoch=once_an_epoch,
    )
    question = replace(question, bands=_number_of_bands(bands, question))
    solved = solve(question, method, release_shares(method, split))
    if plot is not None:
        draw(solved, plot)
    if as_json:
        typer.echo(to_json(asdict(solved)))
    else:
        show(solved, Console())


def _accountant(name: str) -> Accountant:
    from quietgrad.accounting.evaluate import Accountant

    for known in get_args(Accountant):
        if name == known:
            return name  # type: ignore[return-value]
    raise ValueError(f"Expected --accountant best, pld or rdp, got {name!r}.")


def _number_of_bands(wanted: str, question: Question) -> int:
    """Read a number of bands; "best" leaves least noise in the sum of all updates.

    Raises:
        ValueError: it is neither, or "best" lacks a plan or a budget.
    """
    import quietgrad as qg

    if wanted != "best":
        if not wanted.isdecimal() or int(wanted) < 1:
            raise ValueError(f'Expected --bands to be a whole number above 0 or "best", got {wanted!r}.')
        return int(wanted)
    rate, steps, within = question.known_rate, question.known_steps, question.epsilon
    if rate is None or steps is None or within is None:
        raise ValueError("--bands best is solved for the noise. Give the rate, the steps and --epsilon.")
    return qg.choose_bands(rate=rate, steps=steps, epsilon=within, delta=question.delta).bands

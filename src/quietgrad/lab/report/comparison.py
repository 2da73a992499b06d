"""The article about a comparison: the leaderboard, then the guarantee of its runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from quietgrad.lab.compare.comparison import Comparison, ComparisonRow, majority_text, refusals, totals
from quietgrad.lab.compare.leaderboard import TITLES, cells
from quietgrad.lab.compare.verdict import verdict
from quietgrad.lab.formatting import epsilon_text, method_title
from quietgrad.lab.report import plots
from quietgrad.lab.report.html import cards, figure, paragraph, section, table, text
from quietgrad.lab.report.run import (
    about,
    attacker,
    audits,
    claim,
    conditions,
    provenance,
    standing,
    unstated,
)
from quietgrad.lab.run.statement.recorded import RecordedRun, read_run


def comparison_article(folder: Path) -> str:
    """All sections about a comparison."""
    made = Comparison.read(folder)
    names = [name for row in made.rows for name in row.runs]
    runs = {name: read_run(folder / name) for name in names}
    private = [name for row in made.rows if not plots.is_baseline(row) for name in row.runs]
    shown = runs[_best(made).runs[0]]
    parts = [
        _head(made, shown, [runs[name] for name in private]),
        unstated(shown),
        f"<h2>The guarantee, for the run {text(shown.path.name)}</h2>",
        paragraph(
            "The other private runs differ in method, budget and seed; their configs lie beside their ledgers."
        ),
        attacker(shown),
        claim(shown),
        _winner(made),
        _leaderboard(made),
        _against_epsilon(made),
        _curves(made, runs),
        _noise(made),
        audits(list(runs.values())),
        _ledgers(runs),
        f"<h2>More about the run {text(shown.path.name)}</h2>",
        about(shown),
        conditions(shown),
        provenance(shown),
    ]
    return f"<article>{''.join(parts)}</article>"


def _head(made: Comparison, shown: RecordedRun, private: list[RecordedRun]) -> str:
    best = _best(made)
    budgets = ", ".join(f"{value:g}" for value in made.epsilons)
    config, many = shown.config, shown.many
    lead = f"{config.model.name} on {config.data.name}, {shown.units:,} private {many}"
    return f'<h1>Methods at equal ε</h1><p class="lead">{text(lead)}</p>' + cards(
        {
            "ε of each run": (budgets, f"at δ = {made.delta:g}"),
            "best method": (method_title(best.method), f"{100 * best.accuracy:.1f}% at ε = {best.target:g}"),
            "steps": (
                _range(run.planned for run in private),
                f"of {_range(round(run.rate * run.units) for run in private)} {many} each on average",
            ),
            "ε of all runs together": (
                epsilon_text(made.total_epsilon),
                f"of the private ones {epsilon_text(made.private_total_epsilon)}",
            ),
        }
    )


def _best(made: Comparison) -> ComparisonRow:
    """The most accurate private row."""
    private = [row for row in made.rows if not plots.is_baseline(row)]
    return max(private, key=lambda row: (row.accuracy, -row.target))


def _range(numbers: Iterable[int]) -> str:
    """One number if all are the same, else the smallest and the largest."""
    found = sorted(set(numbers))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _winner(made: Comparison) -> str:
    said = verdict(made.rows)
    return section("Which method won", paragraph(said)) if said else ""


def _leaderboard(made: Comparison) -> str:
    drawn = plots.leaderboard_bars(made.rows)
    ranked = sorted(made.rows, key=lambda row: -row.accuracy)
    alt = "Bars: " + ", ".join(f"{row.method} {100 * row.accuracy:.1f}%" for row in ranked) + "."
    runs = max((len(row.runs) for row in made.rows), default=1)
    few = "one seed: differences below about one point mean little"
    seeds = f"mean of {runs} seeds where a spread is given, elsewhere {few}" if runs > 1 else few
    note = f"{majority_text(made)}Every method has its own learning rate from the presets. {totals(made)}"
    return section(
        "Leaderboard",
        figure(drawn, f"Accuracy on the test part, {seeds}; the baselines in grey.", alt),
        table(TITLES, [cells(row) for row in made.rows]),
        *(paragraph(line) for line in refusals(made)),
        paragraph(note),
    )


def _against_epsilon(made: Comparison) -> str:
    if len(made.epsilons) < 2:
        return ""
    drawn = plots.accuracy_against_epsilon(made.rows)
    alt = "Lines: accuracy of each method at each ε; the numbers are in the leaderboard above."
    return section("Accuracy against ε", figure(drawn, "Bars: one standard deviation over the seeds.", alt))


def _curves(made: Comparison, runs: dict[str, RecordedRun]) -> str:
    """One run of each method at the largest budget; more lines could not be distinguished."""
    largest = max(made.epsilons)
    named = {row.method: runs[row.runs[0]].curve for row in made.rows if row.runs and row.target >= largest}
    known = {name: curve for name, curve in named.items() if curve}
    last = ", ".join(f"{name} {100 * curve[-1]['accuracy']:.1f}%" for name, curve in known.items())
    colours = plots.method_colours(made.rows)
    of = f"First seed, ε = {largest:g}, and the non-private baseline."
    return section(
        "Training",
        figure(
            plots.accuracy_curves(known, colours),
            of,
            f"Lines of test accuracy over the steps; they end at {last}.",
        ),
        figure(
            plots.spending_curves(known, colours),
            "ε in the ledgers of the private ones.",
            "Lines of ε rising over the steps.",
        ),
    )


def _noise(made: Comparison) -> str:
    known: dict[float, dict[str, float]] = {target: {} for target in made.epsilons}
    for row in made.rows:
        if row.target in known and row.noise_to_signal is not None:
            known[row.target][row.method] = row.noise_to_signal
    target = max(known, key=lambda value: (len(known[value]), -value))  # where most methods can be compared
    ratios = known[target]
    if not ratios:
        return ""
    note = (
        "Length of a step's noise over the longest signal that the clips let through, before post-processing; known "
        "before training. The true signal is private and shorter; a method that also shortens the signal gains less."
    )
    drawn = plots.noise_bars(ratios, plots.method_colours(made.rows))
    alt = (
        "Bars: "
        + ", ".join(f"{name} {value:.1f}" for name, value in sorted(ratios.items(), key=lambda item: item[1]))
        + "."
    )
    return section("Noise to signal", figure(drawn, f"At ε = {target:g}.", alt), paragraph(note))


def _ledgers(runs: dict[str, RecordedRun]) -> str:
    rows = [
        (
            name,
            f"{run.ledger.count:,} of {run.planned:,}",
            epsilon_text(run.epsilon),
            epsilon_text(run.spent),
            standing(run)[0],
            run.ledger.head[:12],
        )
        for name, run in runs.items()
    ]
    titles = ("run", "releases", "ε of the plan", "ε recorded", "status", "last hash")
    return section("Ledgers", table(titles, rows))

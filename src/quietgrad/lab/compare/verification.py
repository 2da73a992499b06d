"""Do the claims of a comparison stand? Each run's own, and what the table says of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from quietgrad.lab.compare.comparison import Comparison, ComparisonRow, row_of, total_epsilon
from quietgrad.lab.files import read_json
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.statement.seals import broken_seals, is_sealed
from quietgrad.lab.run.statement.statement import FILE
from quietgrad.lab.run.statement.verification import Verdict, close, verify


@dataclass(frozen=True)
class TableVerdict:
    """What was found.

    Args:
        runs: the verdict on each run in the folder.
        problems: what is wrong with the table.
        said: the verdict on everything, in one line.
    """

    runs: dict[str, Verdict]
    problems: tuple[str, ...]
    said: str

    @property
    def stands(self) -> bool:
        return bool(self.claims) and not self.problems and not self.fallen

    @property
    def claims(self) -> list[str]:
        """The runs that claim to be private."""
        return [name for name, found in self.runs.items() if not found.claims_nothing]

    @property
    def fallen(self) -> list[str]:
        return [name for name in self.claims if not self.runs[name].stands]


def is_comparison(path: Path) -> bool:
    """Whether a folder holds the table of a comparison and is no run itself."""
    return (path / "results.json").exists() and not RunFolder(path).exists and not (path / FILE).exists()


def verify_comparison(path: Path) -> TableVerdict:
    """Check every run in the folder of a comparison, then its table against them.

    Args:
        path: the folder.
    """
    runs = {run.name: verify(run) for run in _runs(path)}
    try:
        problems = tuple(_problems(path, set(runs)))
    except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
        problems = (" ".join(str(error).split()) or type(error).__name__,)
    found = TableVerdict(runs, problems, "")
    return TableVerdict(runs, problems, _said(path, found))


def _runs(path: Path) -> list[Path]:
    return sorted(run for run in path.iterdir() if RunFolder(run).exists or (run / FILE).exists())


def _problems(path: Path, runs: set[str]) -> Iterator[str]:
    if is_sealed(path):
        yield from broken_seals(path)
    made = Comparison.read(path)
    listed = [name for row in made.rows for name in row.runs]
    for name in sorted(set(listed) - runs):
        yield f"the table has the run {name}, the folder has not"
    for name in sorted(runs - set(listed)):
        yield f"the run {name} is not in the table, so what it cost is in no total"
    if len(set(listed)) < len(listed):
        yield "a run stands in the table twice"
    if set(listed) <= runs:
        yield from _wrong_rows(path, made)
        yield from _wrong_totals(path, made, listed)


def _wrong_rows(path: Path, made: Comparison) -> Iterator[str]:
    for row in made.rows:
        if not row.runs and row.epsilon != 0:
            yield f"the row {row.method} has no runs that its ε could be read off"
        elif row.runs and row != _rebuilt(path, row):
            yield f"the row {row.method} at ε = {epsilon_text(row.target)} is not what its runs give"


def _rebuilt(path: Path, row: ComparisonRow) -> ComparisonRow:
    results = [read_json(path / name / "results.json") for name in row.runs]
    asked = {RunFolder(path / name).config.privacy.epsilon for name in row.runs}
    return row_of(row.method, min(target or math.inf for target in asked), row.runs, results)


def _wrong_totals(path: Path, made: Comparison, listed: list[str]) -> Iterator[str]:
    everything = [path / name for name in listed]
    private = [run for run in everything if RunFolder(run).config.privacy.epsilon is not None]
    for said, runs in ((made.total_epsilon, everything), (made.private_total_epsilon, private)):
        found = total_epsilon(runs, made.delta)
        if not close(said, found):
            claim = f"the table says ε = {epsilon_text(said)} for {len(runs)} runs together"
            yield f"{claim}, their ledgers cost {epsilon_text(found)}"
    if any(RunFolder(run).config.privacy.delta != made.delta for run in everything):
        yield f"the table says δ = {made.delta:g}, and a run has another one"


def _said(path: Path, found: TableVerdict) -> str:
    wrong = [*found.problems, *(f"{name}: {found.runs[name].problems[0]}" for name in found.fallen)]
    if not found.claims:
        wrong.append("no run in it claims to be private")
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        return f"The claims do NOT all stand: {wrong[0]}{more}."
    made = Comparison.read(path)
    silent = len(found.runs) - len(found.claims)
    unclaimed = f" Not private, and said to be so: {silent} more." if silent else ""
    unsealed = (path / "report.html").exists() and not is_sealed(path)
    unchecked = " report.html was NOT checked: it has no seal." if unsealed else ""
    return (
        f"All {len(found.claims)} claims stand, and the table says what the runs say; together they cost "
        f"ε = {epsilon_text(made.private_total_epsilon)} at δ = {made.delta:g}.{unclaimed}{unchecked}"
    )

"""The register of runs: what all runs on one data set cost together, found in their folders."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import Phase
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.statement.recorded import RecordedRun, read_run


@dataclass(frozen=True, kw_only=True)
class RegisteredRun:
    """One run, finished or not: its plan counts from the first release on."""

    folder: str
    method: str
    started: str
    who: str
    epsilon: float
    delta: float
    releases: int
    finished: bool


@dataclass(frozen=True, kw_only=True)
class DataSetRegister:
    """All runs on one data set that protect the same unit.

    Args:
        epsilon: what they cost together at `delta`; ∞ with a run without noise among them.
        private_epsilon: what those with noise cost together.
        delta: the sum of their δ where runs were tuned on private data, else the largest of them.
    """

    data: str
    unit: str
    epsilon: float
    private_epsilon: float
    delta: float
    runs: tuple[RegisteredRun, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def registers(folders: Sequence[Path]) -> list[DataSetRegister]:
    """Find all runs below some folders and put together those of one data set and unit.

    Runs count as of one data set if their configs name the same one, whichever part of it they train on. The sum is
    then an upper bound for every record.

    Raises:
        LabError: there is no run below a folder.
    """
    groups: dict[tuple[str, str], list[RecordedRun]] = {}
    for path in sorted({path.resolve() for folder in folders for path in _runs_below(folder)}):
        run = read_run(path)
        groups.setdefault((run.config.data.name, run.one), []).append(run)
    return [_register(data, unit, runs) for (data, unit), runs in sorted(groups.items())]


def _runs_below(folder: Path) -> list[Path]:
    found = [file.parent for file in folder.rglob("ledger.jsonl") if RunFolder(file.parent).exists]
    if not found:
        raise LabError(f"There is no run below {folder}. Give a folder that quietgrad train or compare made.")
    return found


def _register(data: str, unit: str, runs: list[RecordedRun]) -> DataSetRegister:
    epsilon, delta = together(runs)
    return DataSetRegister(
        data=data,
        unit=unit,
        epsilon=epsilon,
        private_epsilon=together(run for run in runs if math.isfinite(run.epsilon))[0],
        delta=delta,
        runs=tuple(_registered(run) for run in runs),
    )


def together(runs: Iterable[RecordedRun]) -> tuple[float, float]:
    """Return an (ε, δ) of all runs together.

    Plans are composed by the accountant. The ε of a private search is a claim without a plan, so it is added, and so
    is its δ.
    """
    runs = list(runs)
    searched = [run for run in runs if run.config.tuning.on == "private"]
    plain = [run for run in runs if run.config.tuning.on != "private"]
    delta = max((run.config.privacy.delta for run in plain), default=0.0)
    epsilon = epsilon_of(_phases(plain), delta) if plain else 0.0
    return (
        math.fsum([epsilon, *(run.epsilon for run in searched)]),
        math.fsum([delta, *(run.config.privacy.delta for run in searched)]),
    )


def _phases(runs: Iterable[RecordedRun]) -> Iterator[Phase]:
    for run in runs:
        yield from run.ledger.plan or ()


def _registered(run: RecordedRun) -> RegisteredRun:
    return RegisteredRun(
        folder=str(run.path),
        method=run.config.method.name,
        started=str(run.facts.get("started") or "not recorded"),
        who=run.config.about.who,
        epsilon=run.epsilon,
        delta=run.config.privacy.delta,
        releases=run.ledger.count,
        finished=run.results is not None,
    )

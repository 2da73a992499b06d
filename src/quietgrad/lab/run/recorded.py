"""What the folder of a run tells: the material of reports and statements."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietgrad.accounting.evaluate import attack_advantage
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import number, read_json
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.folder import RunFolder


@dataclass(frozen=True)
class RecordedRun:
    """A run, finished or not.

    Args:
        results: what `train` wrote at its end, None while the run is unfinished.
        epsilon: of the whole plan.
        spent: of what the ledger holds.
        advantage: the most that membership inference can gain, TPR − FPR.
        audits: what attacks found, if any were made.
    """

    path: Path
    config: Config
    versions: dict[str, str]
    split: dict[str, Any]
    ledger: Ledger
    results: dict[str, Any] | None
    audits: list[dict[str, Any]]
    epsilon: float
    spent: float
    advantage: float

    @property
    def planned(self) -> int:
        return sum(phase.count for phase in self.ledger.plan or ())

    @property
    def rate(self) -> float:
        return self.ledger.plan[0].rate if self.ledger.plan else 0.0

    @property
    def records(self) -> int:
        return int(self.ledger.description["records"])

    @property
    def mechanism(self) -> dict[str, Any]:
        described: dict[str, Any] = self.ledger.description["mechanism"]
        return described

    @property
    def curve(self) -> list[dict[str, Any]]:
        points = [] if self.results is None else self.results["curve"]
        return [{**point, "epsilon": number(point["epsilon"])} for point in points]


def read_run(path: Path) -> RecordedRun:
    """Everything in the folder of a run; the ledger's hash chain is checked on the way."""
    folder = RunFolder(path)
    config = folder.config
    if not folder.ledger.exists():
        raise LabError(
            f"{path} has no ledger yet: nothing was released. Go on with quietgrad train --resume."
        )
    ledger = Ledger.read(folder.ledger)
    plan, delta = ledger.plan or (), config.privacy.delta
    return RecordedRun(
        path=path,
        config=config,
        versions=folder.read("versions.json"),
        split=folder.read("split.json"),
        ledger=ledger,
        results=folder.read("results.json") if folder.finished else None,
        audits=_audits(path / "audit.json"),
        epsilon=epsilon_of(plan, delta),
        spent=epsilon_of(ledger.phases, delta) if ledger.count else 0.0,
        advantage=attack_advantage(plan),
    )


def _audits(file: Path) -> list[dict[str, Any]]:
    """One attack or a list of them."""
    if not file.exists():
        return []
    content = read_json(file)
    found = content.get("attacks", [content]) if isinstance(content, dict) else content
    return [audit for audit in found if isinstance(audit, dict)]

"""What the folder of a run tells: the material of reports and statements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietgrad.accounting.evaluate import attack_advantage
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.events import Phase
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.rdp import repeat_and_select
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import number, read_json
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.schedules import steps_of


@dataclass(frozen=True)
class RecordedRun:
    """A run, finished or not.

    Args:
        facts: when it began, and its data file as a keyed hash; runs of 0.2 have none.
        results: what `train` wrote at its end, None while the run is unfinished.
        epsilon: of the whole plan; of the whole search where it was tuned on private data.
        spent: of what the ledger holds.
        advantage: the most that membership inference can gain, TPR − FPR.
        audits: what attacks found, if any were made.
    """

    path: Path
    config: Config
    facts: dict[str, Any]
    versions: dict[str, str]
    split: dict[str, Any]
    ledger: Ledger
    results: dict[str, Any] | None
    audits: list[dict[str, Any]]
    epsilon: float
    spent: float
    advantage: float

    @property
    def label(self) -> str:
        """A short name of the run, which its folder keeps when it is copied."""
        return str(self.facts.get("id", self.ledger.head))[:8]

    @property
    def planned(self) -> int:
        """Steps of the plan; where records take part in turns, one phase pays for several of them."""
        if self.sampling in ("cyclic poisson", "random allocation"):
            return steps_of(self.config.training.epochs, self.rate)
        return sum(phase.count for phase in self.ledger.plan or ())

    @property
    def rate(self) -> float:
        """The expected share of records that a step draws."""
        described = self.ledger.description
        if "once_in_steps" in described:
            return 1.0 / int(described["once_in_steps"])
        return self.ledger.plan[0].rate / int(described.get("groups", 1)) if self.ledger.plan else 0.0

    @property
    def sampling(self) -> str:
        """How records take part."""
        kinds = {
            "groups": "cyclic poisson",
            "at_most": "truncated poisson",
            "once_in_steps": "random allocation",
        }
        return next((kind for key, kind in kinds.items() if key in self.ledger.description), "poisson")

    @property
    def units(self) -> int:
        """N: records, or the users or clients who are protected with all of theirs."""
        return int(self.ledger.description[self.many])

    @property
    def many(self) -> str:
        """What is protected, as the ledger calls it: clients, users or records."""
        return next(kind for kind in ("clients", "people", "records") if kind in self.ledger.description)

    @property
    def one(self) -> str:
        """One of what is protected."""
        return {"clients": "client", "people": "person", "records": "record"}[self.many]

    @property
    def most_records(self) -> int:
        """Of a user, in one step."""
        return int(self.ledger.description.get("most_records", 1))

    @property
    def mechanism(self) -> dict[str, Any]:
        described: dict[str, Any] = self.ledger.description["mechanism"]
        return described

    @property
    def curve(self) -> list[dict[str, Any]]:
        points = [] if self.results is None else self.results["curve"]
        return [{**point, "epsilon": number(point["epsilon"])} for point in points]


def read_run(path: Path, *, results: dict[str, Any] | None = None) -> RecordedRun:
    """Return everything in the folder of a run; the ledger's hash chain is checked on the way.

    Args:
        path: the folder.
        results: those of a run that is just finishing; else the folder's.
    """
    folder = RunFolder(path)
    config = folder.config
    if not folder.ledger.exists():
        raise LabError(
            f"{path} has no ledger yet: nothing was released. Go on with quietgrad train --resume."
        )
    ledger = Ledger.read(folder.ledger)
    plan, delta = ledger.plan or (), config.privacy.delta
    if results is None and folder.finished:
        results = folder.read("results.json")
    claimed = _claimed(plan, config)
    return RecordedRun(
        path=path,
        config=config,
        facts=folder.read("run.json") if (path / "run.json").exists() else {},
        versions=folder.read("versions.json"),
        split=folder.read("split.json"),
        ledger=ledger,
        results=results,
        audits=_audits(path / "audit.json"),
        epsilon=claimed,
        spent=epsilon_of(ledger.phases, delta) if ledger.count else 0.0,
        advantage=attack_advantage(plan) if config.tuning.on != "private" else _advantage(claimed, delta),
    )


def _claimed(plan: tuple[Phase, ...], config: Config) -> float:
    if config.tuning.mean_tries is None:
        return epsilon_of(plan, config.privacy.delta)
    return repeat_and_select(plan, config.privacy.delta, config.tuning.mean_tries)


def _advantage(epsilon: float, delta: float) -> float:
    """TPR − FPR of the best attack on anything (ε, δ)-private: (e^ε − 1 + 2δ)/(e^ε + 1)."""
    return math.tanh(epsilon / 2) + 2 * delta / (math.exp(min(epsilon, 700.0)) + 1)


def _audits(file: Path) -> list[dict[str, Any]]:
    """Return one attack or a list of them."""
    if not file.exists():
        return []
    content = read_json(file)
    found = content.get("attacks", [content]) if isinstance(content, dict) else content
    return [audit for audit in found if isinstance(audit, dict)]

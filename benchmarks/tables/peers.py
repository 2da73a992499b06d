"""DP-EBM and diffprivlib on the league's tables; runs in an environment of its own.

    PEERS/bin/python -m benchmarks.tables.peers TABLES RESULTS.jsonl [--tune]

It needs interpret-core, diffprivlib and scikit-learn below 1.6. With `--tune`, the settings of DP-EBM run on the tables
of the development, on which our own rule was made.
"""

from __future__ import annotations

import argparse
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import diffprivlib.models as diffprivlib
import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor
from numpy import ndarray

from benchmarks.tables.common import (
    DELTA,
    EPSILONS,
    MOST_REGRESSION,
    SPLITS,
    Data,
    Results,
    numbers,
    read,
    rounds,
)

SETTINGS: dict[str, dict[str, Any]] = {
    "DP-EBM": {},
    "DP-EBM, 100 rounds": {"max_rounds": 100},
    "DP-EBM, 100 rounds, rate 0.03": {"max_rounds": 100, "learning_rate": 0.03},
    "DP-EBM, rate 0.03": {"learning_rate": 0.03},
    "DP-EBM, rate 0.1": {"learning_rate": 0.1},
    "DP-EBM, 16 bins": {"max_bins": 16},
    "DP-EBM, 2 leaves": {"max_leaves": 2},
}
TUNE_ON = (
    "wa_churn",
    "mlc_churn",
    "credit",
    "attrition",
    "hmda",
    "diamonds",
    "crashes",
    "insurance",
    "phoneme",
)
"""Tables of the development, the fast ones."""
TUNED = "DP-EBM, rate 0.03"
"""The setting with the best mean AUC on the tables of the development."""


def dp_ebm(data: Data, epsilon: float, options: dict[str, Any], train: ndarray, test: ndarray) -> ndarray:
    """It knows bounds and categories; a missing number is the middle of its bounds."""
    bounds, names = data.known["bounds"], list(data.x)
    x = data.x.assign(**{name: data.x[name].fillna(sum(bounds[name]) / 2) for name in bounds})
    x = x.assign(**{name: x[name].fillna("missing").astype(str) for name in data.known["categories"]})
    known = {
        "feature_types": ["continuous" if name in bounds else "nominal" for name in names],
        "privacy_bounds": {i: tuple(bounds[name]) for i, name in enumerate(names) if name in bounds},
        "epsilon": epsilon,
        "delta": DELTA,
        "n_jobs": 1,
        "random_state": None,
    }
    if data.classes == 0:
        target = dict(zip(("privacy_target_min", "privacy_target_max"), data.known["target"], strict=True))
        regressor = DPExplainableBoostingRegressor(**known, **target, **options)
        said: ndarray = regressor.fit(x.iloc[train], data.y[train]).predict(x.iloc[test])
        return said
    model = DPExplainableBoostingClassifier(**known, **options).fit(x.iloc[train], data.y[train])
    found: ndarray = model.predict_proba(x.iloc[test])
    return found


def logistic_regression(data: Data, epsilon: float, train: ndarray, test: ndarray) -> ndarray:
    """diffprivlib's, on numbers in [0, 1] and one column a category; δ = 0."""
    x = numbers(data)
    longest = math.sqrt(sum(1 + (1 if name in data.known["bounds"] else 0) for name in data.x))
    model = diffprivlib.LogisticRegression(epsilon=epsilon, data_norm=longest, max_iter=300)
    found: ndarray = model.fit(x[train], data.y[train]).predict_proba(x[test])
    return found


def linear_regression(data: Data, epsilon: float, train: ndarray, test: ndarray) -> ndarray:
    """diffprivlib's, with the same columns and known bounds; δ = 0."""
    x = numbers(data)
    model = diffprivlib.LinearRegression(
        epsilon=epsilon, bounds_X=(0.0, 1.0), bounds_y=tuple(data.known["target"])
    )
    found: ndarray = model.fit(x[train], data.y[train]).predict(x[test])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--tune", action="store_true", help="settings of DP-EBM on tables of the development")
    parser.add_argument("--groups", nargs="+", default=["before", "after", "regression"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(SPLITS)))
    args = parser.parse_args()
    results = Results(args.results)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if args.tune:
        for data in read(args.tables, ("development",)):
            for name, options in SETTINGS.items() if data.name in TUNE_ON else ():
                results.run(data, name, 1.0, 0, partial(dp_ebm, data, 1.0, options))
        return
    tables = read(args.tables, tuple(args.groups))
    for seed, epsilon in rounds(args.seeds, args.epsilons):
        for data in tables:
            if data.classes == 0 and epsilon > MOST_REGRESSION:
                continue
            other = linear_regression if data.classes == 0 else logistic_regression
            results.run(data, "diffprivlib", epsilon, seed, partial(other, data, epsilon))
            for name in ("DP-EBM", TUNED):
                results.run(data, name, epsilon, seed, partial(dp_ebm, data, epsilon, SETTINGS[name]))


if __name__ == "__main__":
    main()

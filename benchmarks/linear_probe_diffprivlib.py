"""diffprivlib's classifiers on one split; run by `benchmarks.linear_probe_tables` in an environment of its own.

    OTHER_ENVIRONMENT/bin/python benchmarks/linear_probe_diffprivlib.py SPLIT.npz

Prints accuracies as JSON: {model: {ε: accuracy}}. It needs numpy, scikit-learn below 1.6 and diffprivlib only.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from typing import Any

import numpy as np
from diffprivlib.models import GaussianNB, LogisticRegression, RandomForestClassifier

warnings.simplefilter("ignore")


def models(epsilon: float, width: int, classes: int, seed: int) -> dict[str, Any]:
    """Columns are in [−1, 1], so a row is at most √width long; a task of one against all others for each class."""
    bounds = (-np.ones(width), np.ones(width))
    known = {"epsilon": epsilon, "random_state": seed}
    found = {
        f"logistic regression, C={c:g}": LogisticRegression(
            data_norm=math.sqrt(width), C=c, max_iter=300, **known
        )
        for c in (0.01, 1.0, 100.0)
    }
    found["naive Bayes"] = GaussianNB(bounds=bounds, **known)
    for depth in (5, 10):
        found[f"random forest, depth {depth}"] = RandomForestClassifier(
            n_estimators=10, max_depth=depth, bounds=bounds, classes=list(range(classes)), **known
        )
    return found


def main() -> None:
    split = np.load(sys.argv[1])
    width = split["x"].shape[1]
    found: dict[str, dict[str, float]] = {}
    for epsilon in split["epsilons"].tolist():
        for name, model in models(epsilon, width, int(split["classes"]), int(split["seed"])).items():
            score = model.fit(split["x"], split["y"]).score(split["test_x"], split["test_y"])
            found.setdefault(name, {})[f"{epsilon:g}"] = score
    print(json.dumps(found))


main()

"""What all contenders share: tables, splits, scores, and results that are appended as they come.

It runs in the project's environment and in the peers' one, so it needs numpy, pandas and scikit-learn only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy import ndarray
from sklearn.metrics import log_loss, r2_score, roc_auc_score

EPSILONS = (0.5, 1.0, 2.0, 8.0)
DELTA = 1e-5
SPLITS = 3
MOST_REGRESSION = 2.0
"""The largest ε of the regressors' league."""
TARGET = "(target)"


@dataclass(frozen=True)
class Data:
    """A table and what every contender is told about it."""

    name: str
    x: Any
    y: ndarray
    known: dict[str, Any]

    @property
    def group(self) -> str:
        return str(self.known["group"])

    @property
    def classes(self) -> int:
        """0 where a number is predicted."""
        return int(self.known.get("classes", 0))

    def split(self, seed: int) -> tuple[ndarray, ndarray]:
        """Three quarters to learn from, a quarter to test."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        return order[len(order) // 4 :], order[: len(order) // 4]


def read(folder: Path, groups: tuple[str, ...]) -> list[Data]:
    """The exported tables of these groups."""
    found = []
    for facts in sorted(folder.glob("*.json")):
        known = json.loads(facts.read_text())
        if known["group"] in groups:
            texts = dict.fromkeys(known["categories"], str)
            frame = pd.read_csv(facts.with_suffix(".csv"), dtype=texts)
            y = frame.pop(TARGET).to_numpy()
            found.append(Data(facts.stem, frame, y, known))
    return found


def numbers(data: Data) -> ndarray:
    """Numbers in [0, 1], missing ones in the middle with a flag, and one column a category: for peers without any."""
    parts = []
    for name, (low, high) in data.known["bounds"].items():
        value = (data.x[name].to_numpy(float) - low) / ((high - low) or 1.0)
        parts += [np.nan_to_num(value, nan=0.5), np.isnan(value).astype(float)]
    for name, names in data.known["categories"].items():
        parts += [(data.x[name] == one).to_numpy(float) for one in names]
        parts.append(data.x[name].isna().to_numpy(float))
    return np.stack([part for part in parts if part.any()], 1)


def scores(y: ndarray, said: ndarray, classes: int) -> dict[str, float]:
    """Accuracy, AUC and log loss of probabilities; R² and mean absolute error of numbers."""
    if classes == 0:
        return {"r2": float(r2_score(y, said)), "mae": float(np.abs(y - said).mean())}
    p = np.clip(said, 1e-6, 1.0)
    p /= p.sum(1, keepdims=True)
    auc = roc_auc_score(y, p[:, 1]) if classes == 2 else roc_auc_score(y, p, multi_class="ovr")
    return {
        "accuracy": float((p.argmax(1) == y).mean()),
        "auc": float(auc),
        "log_loss": float(log_loss(y, p, labels=list(range(classes)))),
    }


class Results:
    """A file of JSON lines, one for each run; what is in it is not run again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self._have = {self._key(**line) for line in self.lines}

    @staticmethod
    def _key(table: str, contender: str, epsilon: float, seed: int, **_: Any) -> tuple[Any, ...]:
        return table, contender, epsilon, seed

    def run(
        self,
        data: Data,
        contender: str,
        epsilon: float,
        seed: int,
        predict: Callable[[ndarray, ndarray], ndarray],
    ) -> None:
        """Run once, append the scores; what a contender cannot do is written down as its error."""
        if self._key(data.name, contender, epsilon, seed) in self._have:
            return
        train, test = data.split(seed)
        line: dict[str, Any] = {"table": data.name, "contender": contender, "epsilon": epsilon, "seed": seed}
        start = time.process_time()
        try:
            said = predict(train, test)
            if data.classes == 0:
                said = np.clip(
                    said, *data.known["target"]
                )  # the bounds are public: every contender may use them
            line |= scores(data.y[test], said, data.classes)
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error}"[:200]
        line["seconds"] = round(time.process_time() - start, 2)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.lines.append(line)
        self._have.add(self._key(**line))


def rounds(
    seeds: Sequence[int] = range(SPLITS), epsilons: Sequence[float] = EPSILONS
) -> Iterator[tuple[int, float]]:
    """Split by split, so that every table has something early."""
    for seed in seeds:
        for epsilon in epsilons:
            yield seed, epsilon

"""The rule of the private linear probe, unchanged, on data it was not made on, beside DP-SGD and diffprivlib.

    python -m benchmarks.linear_probe_tables --tasks digits letter --json tables.json
    python -m benchmarks.linear_probe_tables --diffprivlib OTHER_ENVIRONMENT/bin/python

quiet has no settings and runs once per split. The others have several (DP-SGD: linear and one hidden layer of 64, for
images, the lab's CNN, each at several rates; diffprivlib: logistic regression, naive Bayes and random forests), and are
shown twice: with the setting that is best on average over the *other* tables at this ε, as one would have to choose it,
and with the best mean *test* accuracy on this one, which is more than anybody could have in earnest.
All get the columns' smallest and largest values; the row `quiet, bounds paid for` is not.
diffprivlib promises (ε, 0), the others (ε, 1e-5).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.linear_probe_tasks import SIDE, TASKS, Task
from quietgrad._linear_probe.rule import PrivacyWarning
from quietgrad.lab.models.tanh_cnn import tanh_cnn
from quietgrad.sklearn import PrivateClassifier

EPSILONS = (0.5, 1.0, 2.0)
DELTA = 1e-5
RATE, STEPS = 0.04, 500
"""DP-SGD's part of the records in a step: 20 passes."""
RATES = {
    "linear": (1 / 16, 0.25, 1.0, 4.0),
    "hidden": (1 / 32, 0.125, 0.5, 2.0, 4.0, 8.0),
    "cnn": (0.25, 0.5, 1.0, 2.0),
}

Cell = tuple[str, str, float]  # contender, its setting, ε
Split = tuple[ndarray, ndarray, ndarray, ndarray]


class Row(NamedTuple):
    """One contender's setting on one task: accuracies in percent, one a split."""

    task: str
    contender: str
    setting: str
    epsilon: float
    scores: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else 0.0


def quiet(task: Task, split: Split, epsilon: float, bounds: object) -> float:
    """PrivateClassifier as anybody would use it."""
    x, y, test_x, test_y = split
    model = PrivateClassifier(epsilon=epsilon, delta=DELTA, bounds=bounds, classes=range(task.classes))
    return float(model.fit(x, y).score(test_x, test_y))


def dp_sgd(task: Task, split: Split, epsilon: float, kind: str, lr: float) -> float:
    """A model on columns in [−1, 1], clip 1."""
    x, y, test_x, test_y = split
    inputs, tests = (torch.from_numpy(scaled(task, part)) for part in (x, test_x))
    model = network(kind, inputs.shape[1], task.classes)
    batches = qg.PoissonBatches(TensorDataset(inputs, torch.from_numpy(y)), rate=RATE, steps=STEPS)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(multiplier(epsilon))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for rows, labels in batch.split(1024):
                private.backward(cross_entropy(model(rows), labels, reduction="none"))
            private.release()
            optimizer.step()
    return right(model, tests, torch.from_numpy(test_y))


@cache
def multiplier(epsilon: float) -> float:
    """σ of DP-SGD; the number of records does not enter."""
    sampler = qg.PoissonSampler(1000, rate=RATE, steps=STEPS)
    return qg.calibrate(qg.methods.dp_sgd(clip=1.0), sampler, epsilon=epsilon, delta=DELTA).multiplier(0)


@torch.no_grad()
def right(model: nn.Module, x: Tensor, y: Tensor) -> float:
    found = torch.cat([model(part).argmax(1) for part in x.split(1024)])
    return float((found == y).float().mean())


def network(kind: str, width: int, classes: int) -> nn.Module:
    torch.manual_seed(0)
    if kind == "linear":
        return nn.Linear(width, classes)
    if kind == "hidden":
        return nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, classes))
    return nn.Sequential(nn.Unflatten(1, (1, SIDE, SIDE)), tanh_cnn((1, SIDE, SIDE), classes))


def scaled(task: Task, x: ndarray) -> ndarray:
    """Columns to [−1, 1]; those that are constant to 0."""
    flat = x.reshape(len(x), -1).astype(np.float32)
    width = np.where(task.upper > task.lower, task.upper - task.lower, 1.0)
    values: ndarray = (np.where(task.upper > task.lower, 2 * (flat - task.lower) / width - 1, 0.0)).astype(
        np.float32
    )
    return values


def own_cells(task: Task, split: Split) -> Iterator[tuple[Cell, Callable[[], float]]]:
    """quiet and DP-SGD on one split, not run yet."""
    kinds = ("cnn",) if task.images else ("linear", "hidden")
    for epsilon in EPSILONS:
        yield ("quiet", "", epsilon), partial(quiet, task, split, epsilon, (task.lower, task.upper))
        if not task.images:
            yield ("quiet, bounds paid for", "", epsilon), partial(quiet, task, split, epsilon, "private")
        for kind in kinds:
            for lr in RATES[kind]:
                run = partial(dp_sgd, task, split, epsilon, kind, lr)
                yield ("DP-SGD", f"{kind}, lr {lr:g}", epsilon), run


def diffprivlib_cells(task: Task, split: Split, seed: int, python: str) -> Iterator[tuple[Cell, float]]:
    """diffprivlib's models, in its own environment."""
    x, y, test_x, test_y = split
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.npz"
        arrays = {"x": scaled(task, x), "y": y, "test_x": scaled(task, test_x), "test_y": test_y}
        np.savez(file, **arrays, epsilons=np.array(EPSILONS), classes=task.classes, seed=seed)  # type: ignore[arg-type]
        script = Path(__file__).with_name("linear_probe_diffprivlib.py")
        done = subprocess.run([python, str(script), str(file)], check=True, capture_output=True, text=True)
    for model, scores in json.loads(done.stdout).items():
        for epsilon, score in scores.items():
            yield ("diffprivlib", model, float(epsilon)), score


def measured(name: str, seeds: int, python: str | None, known: list[Row]) -> list[Row]:
    """A row for each contender, setting and ε that is not known, with the accuracies of all splits."""
    task = TASKS[name]()
    have = {row[1:4] for row in known if row.task == task.name}
    found: dict[Cell, list[float]] = {}
    for seed in range(seeds):
        split = task.split(seed)
        cells = [(cell, run()) for cell, run in own_cells(task, split) if cell not in have]
        if python is not None and not any(contender == "diffprivlib" for contender, _, _ in have):
            cells += diffprivlib_cells(task, split, seed, python)
        for cell, score in cells:
            found.setdefault(cell, []).append(100 * score)
    return [Row(task.name, *cell, scores) for cell, scores in found.items()]


def best(rows: list[Row]) -> Row:
    return max(rows, key=lambda row: row.mean)


def elsewhere(rows: list[Row], others: list[Row]) -> Row | None:
    """The row of the setting that is best on average over the other tasks that have all settings; None without such."""
    settings = {row.setting for row in rows}
    tasks = dict.fromkeys(row.task for row in others)
    whole = [task for task in tasks if settings <= {row.setting for row in others if row.task == task}]
    means = {
        setting: sum(row.mean for row in others if row.task in whole and row.setting == setting)
        for setting in settings
    }
    chosen = max(means, key=lambda setting: means[setting])
    return next(row for row in rows if row.setting == chosen) if whole else None


def shown(rows: list[Row]) -> Iterator[tuple[str, Row]]:
    """How a row's setting was chosen, and the row; what has one setting only was not chosen at all."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.contender, row.epsilon), []).append(row)
    for (task, contender, epsilon), group in groups.items():
        if len(group) == 1:
            yield "", group[0]
            continue
        others = [
            row for row in rows if (row.contender, row.epsilon) == (contender, epsilon) and row.task != task
        ]
        chosen = elsewhere(group, others)
        if chosen is not None:
            yield "best on the other tasks", chosen
        yield "best on this test", best(group)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--diffprivlib", metavar="PYTHON", help="interpreter of an environment with diffprivlib"
    )
    parser.add_argument("--json", type=Path, help="rows that are in it are not run again")
    args = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    rows = (
        [Row(**row) for row in json.loads(args.json.read_text())] if args.json and args.json.exists() else []
    )
    for name in args.tasks:
        rows += measured(name, args.seeds, args.diffprivlib, rows)
        if args.json is not None:
            args.json.write_text(json.dumps([row._asdict() for row in rows], indent=1))
    for how, row in shown(rows):
        what = f"{row.task:15} {row.contender:22} ε {row.epsilon:<4g}"
        print(f"{what} {row.mean:5.1f} ± {row.std:.1f}  {row.setting:24} {how}")


if __name__ == "__main__":
    main()

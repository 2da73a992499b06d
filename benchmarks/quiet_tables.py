"""The quiet rule, unchanged, on data it was not made on, beside DP-SGD and diffprivlib.

    python -m benchmarks.quiet_tables --tasks digits letter --json tables.json
    python -m benchmarks.quiet_tables --diffprivlib OTHER_ENVIRONMENT/bin/python

The others are given more than they could have in earnest: of their settings the one with the best mean *test* accuracy
at each ε is shown (DP-SGD: linear and one hidden layer of 64 or, for images, the lab's CNN, each at several rates;
diffprivlib: logistic regression, naive Bayes and random forests). quiet has no settings and runs once per seed.
All are told the columns' smallest and largest values; the row `quiet, bounds paid for` is not.
diffprivlib promises (ε, 0), the others (ε, 1e-5).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.quiet_tasks import SIDE, TASKS, Task
from quietgrad.lab.models.tanh_cnn import tanh_cnn
from quietgrad.quiet.rule import PrivacyWarning
from quietgrad.sklearn import PrivateClassifier

EPSILONS = (0.5, 1.0, 2.0)
DELTA = 1e-5
RATE, STEPS = 0.04, 500
"""DP-SGD's part of the records in a step: 20 passes."""
RATES = {"linear": (0.25, 1.0, 4.0), "hidden": (0.125, 0.5, 2.0), "cnn": (0.25, 0.5, 1.0, 2.0)}

Cell = tuple[str, str, float]  # contender, its setting, ε
Split = tuple[ndarray, ndarray, ndarray, ndarray]


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


def own_cells(task: Task, split: Split) -> Iterator[tuple[Cell, float]]:
    """quiet and DP-SGD on one split."""
    kinds = ("cnn",) if task.images else ("linear", "hidden")
    for epsilon in EPSILONS:
        yield ("quiet", "", epsilon), quiet(task, split, epsilon, (task.lower, task.upper))
        if not task.images:
            yield ("quiet, bounds paid for", "", epsilon), quiet(task, split, epsilon, "private")
        for kind in kinds:
            for lr in RATES[kind]:
                yield ("DP-SGD", f"{kind}, lr {lr:g}", epsilon), dp_sgd(task, split, epsilon, kind, lr)


def diffprivlib_cells(task: Task, split: Split, seed: int, python: str) -> Iterator[tuple[Cell, float]]:
    """diffprivlib's models, in its own environment."""
    x, y, test_x, test_y = split
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "split.npz"
        arrays = {"x": scaled(task, x), "y": y, "test_x": scaled(task, test_x), "test_y": test_y}
        np.savez(file, **arrays, epsilons=np.array(EPSILONS), classes=task.classes, seed=seed)  # type: ignore[arg-type]
        script = Path(__file__).with_name("quiet_diffprivlib.py")
        done = subprocess.run([python, str(script), str(file)], check=True, capture_output=True, text=True)
    for model, scores in json.loads(done.stdout).items():
        for epsilon, score in scores.items():
            yield ("diffprivlib", model, float(epsilon)), score


def measured(name: str, seeds: int, python: str | None) -> list[dict[str, object]]:
    """A row for each contender and ε: the setting with the best mean, its mean and its standard deviation."""
    task = TASKS[name]()
    found: dict[Cell, list[float]] = {}
    for seed in range(seeds):
        split = task.split(seed)
        cells = list(own_cells(task, split))
        if python is not None:
            cells += diffprivlib_cells(task, split, seed, python)
        for cell, score in cells:
            found.setdefault(cell, []).append(100 * score)
    return list(best_rows(task.name, found))


def best_rows(task: str, found: dict[Cell, list[float]]) -> Iterator[dict[str, object]]:
    for contender in dict.fromkeys(cell[0] for cell in found):
        for epsilon in EPSILONS:
            cells = {
                cell: scores for cell, scores in found.items() if (cell[0], cell[2]) == (contender, epsilon)
            }
            cell = max(cells, key=lambda cell: float(np.mean(cells[cell])))
            scores = cells[cell]
            row: dict[str, object] = {"task": task, "contender": contender, "setting": cell[1]}
            spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
            yield row | {"epsilon": epsilon, "mean": float(np.mean(scores)), "std": spread}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--diffprivlib", metavar="PYTHON", help="interpreter of an environment with diffprivlib"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)
    rows = [row for name in args.tasks for row in measured(name, args.seeds, args.diffprivlib)]
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1))
    for row in rows:
        what = f"{row['task']:15} {row['contender']:22} ε {row['epsilon']:<4g}"
        print(f"{what} {row['mean']:5.1f} ± {row['std']:.1f}  {row['setting']}")


if __name__ == "__main__":
    main()

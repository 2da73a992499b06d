"""Tables of accuracies: configs of the package with changes, tuned alike, over seeds; every run can be resumed."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from quietgrad.lab.data import Parts
from quietgrad.lab.files import read_json
from quietgrad.lab.models import build
from quietgrad.lab.papers.experiment import Experiment, Place
from quietgrad.lab.papers.finding import SCALES, Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.verdicts import Claim, judge
from quietgrad.lab.run.config import Config, load_config
from quietgrad.lab.run.config_sections import DataConfig, ModelConfig
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.interrupt import Stopped
from quietgrad.lab.run.metrics import accuracy
from quietgrad.lab.run.task import load_task
from quietgrad.lab.run.train import train
from quietgrad.schedules import steps_of

OVERHEAD = {"gep": 2.5, "biased_gep": 2.2, "pdp_sgd": 2.0, "gip": 1.6, "top_groups": 1.5}
"""A step of the method over a plain one, where it is far from DP-SGD's 1.2 (docs/results/methods.md)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One row of a table.

    Args:
        label: what the paper calls it.
        config: a config of the package.
        changes: `section.key=value`, after those of the scale.
        theirs: the paper's accuracy in percent.
        at: (curve, number): where the accuracy is drawn, in a figure of accuracies against a number.
    """

    label: str
    config: str
    changes: tuple[str, ...] = ()
    theirs: float | None = None
    at: tuple[str, float] | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A scale.

    Args:
        changes: what is changed in every cell.
        factors: of the learning rate, tried on seed 0.
        seed_spread: standard deviation between seeds in points, as known from elsewhere, for a plan of one seed.
        said: the settings in words.
        cells: in the place of the experiment's own.
    """

    changes: tuple[str, ...] = ()
    seeds: int = 1
    factors: tuple[float, ...] = (1.0,)
    seed_spread: float = 0.0
    said: str = ""
    cells: tuple[Cell, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Trainings(Experiment):
    """Accuracies of several cells, and what the paper claims about them.

    Args:
        curves: draw test accuracy over epochs, as the paper's figure does.
        x_label: what the numbers of `Cell.at` are, where cells have one.
    """

    cells: tuple[Cell, ...]
    plans: Mapping[Scale, TrainingPlan]
    claims: tuple[Claim, ...]
    curves: bool = False
    x_label: str = ""
    log_x: bool = False

    @property
    def scales(self) -> tuple[Scale, ...]:
        return tuple(scale for scale in SCALES if scale in self.plans)

    def configs(self, scale: Scale) -> dict[str, Config]:
        """label → what is run, at seed 0 and the config's own learning rate."""
        self.check(scale)
        shared = list(self.plans[scale].changes)
        cells = self.cells_at(scale)
        return {cell.label: load_config(Path(cell.config), [*shared, *cell.changes]) for cell in cells}

    def cells_at(self, scale: Scale) -> tuple[Cell, ...]:
        return self.plans[scale].cells or self.cells

    @property
    def resumable(self) -> bool:
        return True

    def trainings(self, scale: Scale) -> frozenset[str]:
        """One name for all learning rates and seeds of a config."""
        return frozenset(_digest(_with(config, 1.0, 0)) for config in self.configs(scale).values())

    def seconds(self, scale: Scale, place: Place) -> float:
        plan = self.plans[scale] if scale in self.plans else TrainingPlan()
        runs = plan.seeds + len(plan.factors) - 1  # the rate that is chosen has run on seed 0
        return runs * sum(_one_run(config, place.data_dir) for config in self.configs(scale).values())

    def run(self, scale: Scale, place: Place) -> Finding:
        plan = self.plans[scale]
        rows: list[Row] = []
        curves: list[Curve] = []
        seconds = 0.0
        for cell, config in zip(self.cells_at(scale), self.configs(scale).values(), strict=True):
            place.tell(f"{cell.label}: {config.method.name} on {config.data.name}")
            tried = _tried(config, plan.factors, place)
            lr = max(tried, key=lambda rate: tried[rate]["train"])
            results = [
                tried[lr],
                *(_trained(_with(config, lr, seed), place) for seed in range(1, plan.seeds)),
            ]
            rows.append(_row(cell, results, lr, plan.seed_spread))
            curves.append(_curve(cell.label, results[0]))
            seconds += sum(float(result["seconds"]) for result in (*tried.values(), *results[1:]))
            place.keep(self._finding(plan, rows, curves, seconds))
        return self._finding(plan, rows, curves, seconds)

    def _finding(
        self, plan: TrainingPlan, rows: Sequence[Row], curves: Sequence[Curve], seconds: float
    ) -> Finding:
        verdict, why = judge(rows, self.claims)
        return Finding(
            rows=tuple(rows),
            verdict=verdict,
            why=why,
            settings=plan.said,
            pictures=self._pictures(rows, curves),
            seconds=round(seconds, 1),
        )

    def _pictures(self, rows: Sequence[Row], curves: Sequence[Curve]) -> tuple[Picture, ...]:
        places = {cell.label: cell.at for cell in self.cells}
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in rows:
            if at := places.get(row.label):
                lines.setdefault(at[0], []).append((at[1], row.ours))
        if lines:
            drawn = tuple(_line(name, sorted(points)) for name, points in lines.items())
            return (Picture(x=self.x_label, y="test accuracy, %", curves=drawn, log_x=self.log_x),)
        if self.curves:
            return (Picture(x="step", y="test accuracy, %", curves=tuple(curves)),)
        return ()


def _line(label: str, points: Sequence[tuple[float, float]]) -> Curve:
    return Curve(label=label, x=tuple(x for x, _ in points), y=tuple(y for _, y in points))


def _with(config: Config, lr: float, seed: int) -> Config:
    training = config.training.model_copy(update={"lr": lr, "seed": seed})
    return config.model_copy(update={"training": training})


def _tried(config: Config, factors: Sequence[float], place: Place) -> dict[float, dict[str, Any]]:
    """Learning rate → its run on seed 0. The best one on training records is taken, which ε does not cover."""
    rates = [float(f"{config.training.lr * factor:.4g}") for factor in factors]
    return {lr: _trained(_with(config, lr, 0), place) for lr in rates}


def _trained(config: Config, place: Place) -> dict[str, Any]:
    """One run, resumed or read back if it is there already; entries that share a config share its run."""
    folder = RunFolder(place.out / "runs" / f"{config.method.name}-{_digest(config)}")
    parts = _parts(config.data, place.data_dir)
    if not (folder.exists and folder.finished):
        try:
            train(config, folder.path, resume=folder.exists, data_dir=place.data_dir, parts=parts)
        except Stopped as stopped:
            raise Stopped("Stopped, and kept. Start the command again to go on.") from stopped
    else:
        folder.resume(config)
    result: dict[str, Any] = read_json(folder.path / "results.json")
    result["train"] = _training_accuracy(config, folder, parts)
    result["tests"] = len(parts.test)
    place.tell(f"  lr {config.training.lr:g}, seed {config.training.seed}: {100 * result['accuracy']:.1f}%")
    return result


def _digest(config: Config) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:12]


@cache
def _parts(data: DataConfig, data_dir: Path | None) -> Parts:
    """One reading of the data (and its features) for all cells that share them."""
    return load_task(Config(data=data), data_dir=data_dir)


def _training_accuracy(config: Config, folder: RunFolder, parts: Parts, most: int = 5_000) -> float:
    model = build(config.model.name, parts.input_shape, parts.num_classes, **config.model.options)
    weights = folder.load("model.pt")
    assert weights is not None
    model.load_state_dict(weights)
    return accuracy(model, TensorDataset(*(tensor[:most] for tensor in parts.private.tensors)))


def _row(cell: Cell, results: Sequence[Mapping[str, Any]], lr: float, seed_spread: float) -> Row:
    tests = [100 * result["accuracy"] for result in results]
    mean = statistics.mean(tests)
    sampling = math.sqrt(mean * (100 - mean) / results[0]["tests"])
    spread = max(statistics.stdev(tests) if len(tests) > 1 else seed_spread, sampling)
    epsilon = float(results[0]["epsilon"])
    lost = sum(result.get("lost", 0) for result in results)
    return Row(
        label=cell.label,
        theirs=cell.theirs,
        ours=round(mean, 2),
        spread=round(spread, 2),
        note=f"ε = {epsilon:.3g}, lr {lr:g}, {len(tests)} seed{'s' if len(tests) > 1 else ''}"
        + (f", {lost} steps lost in crashes" if lost else ""),
        runs=len(tests),
    )


def _curve(label: str, result: Mapping[str, Any]) -> Curve:
    return _line(label, [(float(p["step"]), 100 * float(p["accuracy"])) for p in result["curve"]])


def _one_run(config: Config, data_dir: Path | None) -> float:
    """Steps × samples × a plain pass over one sample, measured here, × the method's overhead."""
    parts = _parts(config.data.model_copy(update={"features": "none"}), data_dir)
    shape = parts.input_shape
    if config.data.features == "scatter":
        shape = (81 * shape[0], shape[1] // 4, shape[2] // 4)
    if config.method.name == "quiet":
        return 60.0
    steps = steps_of(config.training.epochs, config.training.batch / len(parts.private))
    work = config.training.batch * config.augment.views + _public_work(config, parts)
    training = steps * work * OVERHEAD.get(config.method.name, 1.2)
    testing = 20 * len(parts.test) / 3
    return (training + testing) * _per_sample(config.model.model_dump_json(), shape, parts.num_classes)


def _public_work(config: Config, parts: Parts) -> float:
    return len(parts.public) / int(config.method.options.get("refresh_every", 1))


@cache
def _per_sample(model: str, shape: tuple[int, ...], classes: int, rows: int = 32) -> float:
    """Seconds of a forward and backward pass, per sample."""
    options = ModelConfig.model_validate_json(model)
    network = build(options.name, shape, classes, **options.options)
    inputs = torch.randint(100, (rows, *shape)) if len(shape) == 1 else torch.randn(rows, *shape)
    best = math.inf
    for _ in range(2):
        started = time.perf_counter()
        F.cross_entropy(network(inputs), torch.zeros(rows, dtype=torch.long)).backward()
        best = min(best, time.perf_counter() - started)
    return best / rows

"""DP-SGD tuned as widely as PDP-SGD and GEP where budgets are small.

    python -m benchmarks.small_budgets --data-dir DATA --json FILE

MNIST with 10,000 private and 100 labelled public records, on a CNN of 26,000 weights: PDP-SGD's own setting (Zhou, Wu,
Banerjee 2021). Every contender has the same grid of lengths and
learning rates, and may start from a model of the public records with their labels. The setting is chosen on 5,000
other training images with one noise; three other noises are judged by the 10,000 test images. Finished runs are kept in
the file, one line each, and not run again. The private linear probe has no settings and takes the public
records unlabelled.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._linear_probe.recipe import (
    all_at_once,
    fit_rescaling,
    probe_program,
    train_head,
    zero_head,
)
from quietgrad._linear_probe.rule import settings
from quietgrad.features.encoders import Scatter, encode
from quietgrad.lab.data import Parts, load
from quietgrad.lab.models.tanh_cnn import tanh_cnn
from quietgrad.lab.run.config_sections import MethodConfig
from quietgrad.lab.run.methods import uncalibrated
from quietgrad.lab.run.metrics import accuracy
from quietgrad.lab.run.warm_start import train_on_public

PRIVATE, PUBLIC, OTHERS = 10_000, 100, 5_000
DELTA = 1e-5
PLANS = ((150, 250), (40, 1000))
"""Steps and records in each, expected."""
PATHS = (30.0, 90.0, 270.0)
"""Learning rate times steps; the paper's DP-SGD has 60 (1,200 steps at 0.05), its PDP-SGD 120 to 240."""
OPTIONS: dict[str, dict[str, Any]] = {
    "dp_sgd": {"clip": 1.0},
    "pdp_sgd": {"rank": 50, "clip": 1.0, "refresh_every": 4},
    "gep": {"rank": 50, "clip": 1.0, "residual_clip": 0.5, "refresh_every": 4},
}
CONTENDERS = {0.15: ("dp_sgd", "pdp_sgd"), 0.3: ("dp_sgd", "gep")}
REPEATS = 3


class Setting(NamedTuple):
    method: str
    epsilon: float
    warm: bool
    steps: int
    batch: int
    path: float


class Runs:
    """What was run, in a file."""

    def __init__(self, file: Path, data_dir: Path | None) -> None:
        self.file, self.data_dir = file, data_dir
        lines = file.read_text().splitlines() if file.exists() else []
        self.found: dict[tuple[Any, ...], float] = {
            tuple(line["key"]): line["accuracy"] for line in map(json.loads, lines)
        }

    def accuracy(self, setting: Setting, judge: str, repeat: int) -> float:
        """In percent, on `judge`: "others" or "test"."""
        key = (*setting, judge, repeat)
        if key not in self.found:
            parts, others = task(self.data_dir)
            torch.manual_seed(repeat)
            model = (
                quiet(self.data_dir, setting.epsilon)
                if setting.method == "quiet"
                else trained(parts, setting)
            )
            self.found[key] = 100 * accuracy(model, others if judge == "others" else parts.test)
            with self.file.open("a") as file:
                file.write(json.dumps({"key": key, "accuracy": self.found[key]}) + "\n")
        return self.found[key]


@cache
def task(data_dir: Path | None) -> tuple[Parts, TensorDataset]:
    """The parts, and 5,000 training images that are none of them."""
    drawn = load("mnist", data_dir=data_dir, private=PRIVATE + OTHERS, public=PUBLIC, public_labels=True)
    x, y = drawn.private.tensors
    private, others = TensorDataset(x[:PRIVATE], y[:PRIVATE]), TensorDataset(x[PRIVATE:], y[PRIVATE:])
    parts = Parts(
        private=private,
        public=drawn.public,
        test=drawn.test,
        num_classes=drawn.num_classes,
        input_shape=drawn.input_shape,
        record={},
    )
    return parts, others


def trained(parts: Parts, setting: Setting) -> nn.Module:
    """A network after a private run."""
    model = tanh_cnn(parts.input_shape, parts.num_classes)
    if setting.warm:
        train_on_public(model, parts)
    batches = qg.PoissonBatches(parts.private, rate=setting.batch / PRIVATE, steps=setting.steps)
    method = MethodConfig(name=setting.method, **OPTIONS[setting.method])
    mechanism = uncalibrated(method, parts, model, batches).with_noise(multiplier(setting))
    optimizer = torch.optim.SGD(model.parameters(), lr=setting.path / setting.steps)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for x, y in batch.split(250):
                private.backward(cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
    return model


def multiplier(setting: Setting) -> float:
    """σ, the same for all methods: each step is one Gaussian."""
    return _multiplier(setting.steps, setting.batch, setting.epsilon)


@cache
def _multiplier(steps: int, batch: int, epsilon: float) -> float:
    sampler = qg.PoissonSampler(PRIVATE, rate=batch / PRIVATE, steps=steps)
    return qg.calibrate(qg.methods.dp_sgd(clip=1.0), sampler, epsilon=epsilon, delta=DELTA).multiplier(0)


def quiet(data_dir: Path | None, epsilon: float) -> nn.Module:
    """Train the private linear probe by its rule."""
    parts, _ = task(data_dir)
    rule = settings(records=PRIVATE, classes=parts.num_classes, epsilon=epsilon, delta=DELTA)
    encoder, rows = encoded(data_dir)
    rescale = fit_rescaling("public", rule, others=encode(encoder, parts.public_inputs))
    batches = all_at_once(TensorDataset(rescale(rows), parts.private.tensors[1]), rule)
    program = probe_program("public", rows.shape[1:], rule)
    program = qg.calibrate(program, batches, epsilon=epsilon, delta=DELTA)
    head = zero_head(rescale.width, parts.num_classes)
    train_head(head, program, batches, rule)
    return nn.Sequential(encoder, rescale, head)


@cache
def encoded(data_dir: Path | None) -> tuple[nn.Module, torch.Tensor]:
    parts, _ = task(data_dir)
    encoder = Scatter(parts.input_shape)
    return encoder, encode(encoder, parts.private.tensors[0])


def chosen(runs: Runs, method: str, epsilon: float, warm: bool) -> Setting:
    """The best of the grid on other training images."""
    grid = [Setting(method, epsilon, warm, steps, batch, path) for steps, batch in PLANS for path in PATHS]
    return max(grid, key=lambda setting: runs.accuracy(setting, "others", 0))


def show(name: str, setting: Setting, runs: Runs) -> None:
    scores = [runs.accuracy(setting, "test", repeat) for repeat in range(1, REPEATS + 1)]
    plan = (
        f"{setting.steps} steps of {setting.batch}, lr {setting.path / setting.steps:.3g}"
        if setting.steps
        else ""
    )
    print(
        f"ε {setting.epsilon:<5g} {name:28} {statistics.mean(scores):5.1f} ± {statistics.stdev(scores):.1f}  {plan}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    runs = Runs(args.json, args.data_dir)
    for epsilon, methods in CONTENDERS.items():
        show("quiet, labels not used", Setting("quiet", epsilon, False, 0, 0, 0.0), runs)
        for method in methods:
            for warm in (False, True):
                name = method + (", from public labels" if warm else "")
                show(name, chosen(runs, method, epsilon, warm), runs)
    parts, _ = task(args.data_dir)
    model = tanh_cnn(parts.input_shape, parts.num_classes)
    train_on_public(model, parts)
    print(f"ε 0     public labels alone          {100 * accuracy(model, parts.test):5.1f}")


if __name__ == "__main__":
    main()

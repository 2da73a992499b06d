"""Accuracy of the subspace methods on real data, for docs/results/subspace.md.

    python -m benchmarks.subspace_results pdp    PDP-SGD's setting: MNIST, 10,000 private, 100 public, 30 epochs
    python -m benchmarks.subspace_results gep    GEP's setting: MNIST, 60,000 private, Fashion-MNIST as public images
    python -m benchmarks.subspace_results splits GEP's splits of the budget over ε: Fashion-MNIST, 10,000 private

Each experiment tunes the learning rate of every method at every noise on seed 0, by the training accuracy (not part
of ε, as all tuning here), and repeats the best one on the other seeds. Finished runs are kept in the --json file (one
line each) and not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import Parts, load
from quietgrad.lab.models import build
from quietgrad.mechanism.mechanism import Mechanism
from quietgrad.representations.public import PublicLosses
from quietgrad.representations.public_losses import labelled_losses, random_label_losses

DELTA = 1e-5
MethodOf = Callable[[Parts], Mechanism]
Tuned = tuple[MethodOf, tuple[float, ...]]
"""A method and the learning rates it is tried with on seed 0."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One experiment: data, model and plan, the same for all its methods."""

    name: str
    data: str
    model: str
    private: int | None
    public: int
    public_from: str | None
    batch: int
    steps: int
    momentum: float = 0.0
    decays: bool = False

    def parts(self, seed: int, folder: str | None) -> Parts:
        return _parts(self.data, self.private, self.public, self.public_from, seed, folder)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run; `noise` is what the budget was given as, "sigma=10" or "epsilon=2"."""

    experiment: str
    method: str
    noise: str
    lr: float
    seed: int
    epsilon: float
    train: float
    test: float
    seconds: float

    @property
    def key(self) -> tuple[str, str, str, float, int]:
        return self.experiment, self.method, self.noise, self.lr, self.seed


@cache
def _parts(
    data: str, private: int | None, public: int, public_from: str | None, seed: int, folder: str | None
) -> Parts:
    return load(
        data,
        data_dir=folder,
        private=private,
        public=public,
        public_from=public_from,
        public_labels=public_from is None,
        seed=seed,
    )


def public_losses(parts: Parts) -> PublicLosses:
    """True labels where the public part has them, random ones otherwise."""
    if parts.public_labels is not None:
        return labelled_losses(parts.public_inputs, parts.public_labels, chunk=300)
    return random_label_losses(parts.public_inputs, parts.num_classes, chunk=300)


def train(setting: Setting, parts: Parts, mechanism: Mechanism, noise: str, lr: float, seed: int) -> Result:
    """One private run, reproducible (so its ε is nominal), and its accuracy at the end."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    model = build(setting.model, parts.input_shape, parts.num_classes)
    rate = setting.batch / len(parts.private)
    batches = qg.PoissonBatches(parts.private, rate=rate, steps=setting.steps, seed=seed)
    mechanism = with_budget(mechanism, batches, noise)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=setting.momentum)
    with qg.Privatizer(model, mechanism, batches, noise_source=qg.SeededSource(seed)) as private:
        for step, batch in enumerate(batches):
            if setting.decays and step == setting.steps // 2:
                optimizer.param_groups[0]["lr"] = lr / 10
            for x, y in batch.split(512):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
        spent = private.epsilon(delta=DELTA)
    return Result(
        experiment=setting.name,
        method=mechanism.name,
        noise=noise,
        lr=lr,
        seed=seed,
        epsilon=spent,
        train=accuracy(model, parts.private),
        test=accuracy(model, parts.test),
        seconds=time.perf_counter() - started,
    )


def with_budget(mechanism: Mechanism, batches: qg.PoissonBatches, noise: str) -> Mechanism:
    kind, value = noise.split("=")
    if kind == "sigma":
        return mechanism.with_noise(float(value))
    return mechanism.with_noise(_multiplier(float(value), batches.rate, batches.steps))


@cache
def _multiplier(epsilon: float, rate: float, steps: int) -> float:
    """σ is the same for every method here: each step is one Gaussian of that multiplier."""
    batches = qg.PoissonBatches(TensorDataset(torch.zeros(1)), rate=rate, steps=steps)
    calibrated = qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=epsilon, delta=DELTA)
    assert calibrated.noise_multiplier is not None
    return calibrated.noise_multiplier


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset, most: int = 10_000) -> float:
    """Percent right among the first `most` examples."""
    inputs, labels = (tensor[:most] for tensor in data.tensors)
    right = [
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(inputs.split(1000), labels.split(1000), strict=True)
    ]
    return 100 * sum(right) / len(labels)


class Runs:
    """Finished runs, on disk as they finish."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}

    def get(self, key: tuple[str, str, str, float, int], run: Callable[[], Result]) -> Result:
        if key not in self.results:
            self.results[key] = run()
            line = json.dumps(asdict(self.results[key]))
            print(line, flush=True)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(line + "\n")
        return self.results[key]


def compare(
    setting: Setting,
    methods: dict[str, Tuned],
    noises: Iterable[str],
    seeds: int,
    folder: str | None,
    runs: Runs,
) -> None:
    """Tune each method on seed 0, repeat its best learning rate on the other seeds, and print the table."""

    def run(name: str, noise: str, lr: float, seed: int) -> Result:
        def fresh() -> Result:
            parts = setting.parts(seed, folder)
            result = train(setting, parts, methods[name][0](parts), noise, lr, seed)
            return Result(**{**asdict(result), "method": name})

        return runs.get((setting.name, name, noise, lr, seed), fresh)

    print(f"{'noise':14} {'ε':>7} {'method':24} {'lr':>6} {'test %':>14}  seeds")
    for noise in noises:
        for name, (_, learning_rates) in methods.items():
            tried = [run(name, noise, lr, 0) for lr in learning_rates]
            best = max(tried, key=lambda result: result.train).lr
            found = [run(name, noise, best, seed) for seed in range(seeds)]
            tests = [result.test for result in found]
            spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
            shown = f"{statistics.mean(tests):.2f} ± {spread:.2f}"
            print(
                f"{noise:14} {found[0].epsilon:7.3f} {name:24} {best:6g} {shown:>14}  {len(tests)}",
                flush=True,
            )


PDP = Setting(
    name="pdp", data="mnist", model="tanh_cnn", private=10_000, public=100, public_from=None, batch=250, steps=1200
)  # fmt: skip
GEP = Setting(
    name="gep", data="mnist", model="tanh_cnn", private=None, public=300, public_from="fashion-mnist",
    batch=600, steps=600,
)  # fmt: skip
SPLITS = Setting(
    name="splits", data="fashion-mnist", model="tanh_cnn", private=10_000, public=100, public_from="mnist",
    batch=250, steps=400,
)  # fmt: skip


def dp_sgd(clip: float) -> MethodOf:
    return lambda _: qg.methods.dp_sgd(clip=clip)


def gep(**options: object) -> MethodOf:
    return lambda parts: qg.methods.gep(public_losses(parts), **options)  # type: ignore[arg-type]


def biased_gep(**options: object) -> MethodOf:
    return lambda parts: qg.methods.biased_gep(public_losses(parts), **options)  # type: ignore[arg-type]


def pdp_sgd(**options: object) -> MethodOf:
    return lambda parts: qg.methods.pdp_sgd(public_losses(parts), **options)  # type: ignore[arg-type]


GEP_OPTIONS: dict[str, object] = {"rank": 50, "clip": 1.0, "residual_clip": 0.5, "refresh_every": 4}
GEP_ON_MNIST: dict[str, object] = {
    "rank": 200, "clip": 1.0, "residual_clip": 1.0, "split": "energy", "parameters": 26_010, "refresh_every": 4
}  # fmt: skip
EXPERIMENTS: dict[str, tuple[Setting, dict[str, Tuned], tuple[str, ...], int]] = {
    "pdp": (
        PDP,
        {
            "dp_sgd": (dp_sgd(1.0), (0.01, 0.05, 0.1, 0.2)),
            "pdp_sgd": (pdp_sgd(rank=50, refresh_every=4), (0.05, 0.1, 0.2)),
        },
        ("sigma=18", "sigma=14", "sigma=10", "sigma=4"),
        3,
    ),
    "gep": (
        GEP,
        {"dp_sgd": (dp_sgd(1.0), (1.0, 2.0, 4.0)), "gep": (gep(**GEP_ON_MNIST), (2.0, 4.0))},
        ("epsilon=2", "epsilon=8", "epsilon=5"),
        2,
    ),
    "splits": (
        SPLITS,
        {
            "dp_sgd": (dp_sgd(1.0), (0.5, 1.0, 2.0)),
            "biased_gep": (biased_gep(rank=50, clip=1.0, refresh_every=4), (0.5, 1.0, 2.0)),
            "gep paper": (gep(**GEP_OPTIONS), (0.5, 1.0, 2.0)),
            "gep energy": (gep(**GEP_OPTIONS, split="energy", parameters=26_010), (0.5, 1.0, 2.0)),
            "gep joint": (gep(**GEP_OPTIONS, joint=True), (0.5, 1.0, 2.0)),
        },
        ("epsilon=2", "epsilon=0.3", "epsilon=8"),
        2,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=list(EXPERIMENTS))
    parser.add_argument("--data-dir", help="where the data sets are; default: where `quietgrad data` looks")
    parser.add_argument("--json", type=Path, help="file that keeps finished runs, one line each")
    arguments = parser.parse_args()
    setting, methods, noises, seeds = EXPERIMENTS[arguments.experiment]
    compare(setting, methods, noises, seeds, arguments.data_dir, Runs(arguments.json))


if __name__ == "__main__":
    main()

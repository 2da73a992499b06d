"""Accuracy of the sparse methods on real Fashion-MNIST, and what their choosers catch, for docs/results/sparse.md.

    python -m benchmarks.sparse_results accuracy   26k tanh CNN, 10,000 private, batch 250, 12 epochs, ε 0.8 and 2
    python -m benchmarks.sparse_results large      the same with a wider CNN above 250,000 parameters, ε 2, one seed
    python -m benchmarks.sparse_results captured   energy in 10% of the coordinates along a DP-SGD run
    python -m benchmarks.sparse_results selection  time of one Mallows selection among a million coordinates
    python -m benchmarks.sparse_results report     the table of the runs in the --json file, without new ones

The learning rate of every method is tuned on seed 0, by the accuracy on the training records (not part of ε, as all
tuning here), and the best one repeated on further seeds. Accuracies are of an exponential average of the weights,
which is free. Finished runs are kept in the --json file, one line each, and not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import Parts, load
from quietgrad.lab.diagnostics.sparse import CapturedEnergy, CosineSimilarity, EnergyReport, Selector
from quietgrad.lab.models import build
from quietgrad.mechanism.mechanism import Mechanism
from quietgrad.methods.gip.noise import SelectedGaussian
from quietgrad.methods.gip.selection import Grouping
from quietgrad.noise.sources import EntropySource
from quietgrad.representations.base import Representation
from quietgrad.representations.masks.mask import RandomMask
from quietgrad.representations.masks.top_groups import TopGroups
from quietgrad.schedules import Cooling, Exponential, Piecewise

DELTA, RECORDS, BATCH, EPOCHS, AVERAGING = 1e-5, 10_000, 250, 12, 0.98
STEPS, RATE = EPOCHS * RECORDS // BATCH, BATCH / RECORDS
COOLING = Cooling(0.9, epochs=8)
PRUNING = Piecewise((1.0, 0.7, 0.4, 0.1), (3, 6, 9))
"""The paper's linear decay from 1 to 0.1 in four stages: every stage is a phase of the ledger."""


@dataclass(frozen=True)
class Plan:
    """What gip and calibration need to know of the batches."""

    rate: float = RATE
    steps: int = STEPS


METHODS: dict[str, Mechanism | None] = {
    "dp_sgd": qg.methods.dp_sgd(),
    "random_freeze": qg.methods.random_freeze(freeze=COOLING),
    "ranked_freeze": qg.methods.ranked_freeze(freeze=COOLING),
    "posterior_freeze": qg.methods.posterior_freeze(freeze=COOLING),
    "random_k": qg.methods.random_k(keep=Exponential(1.0, 0.5, EPOCHS - 1)),
    "random_k as gip": qg.methods.random_k(keep=PRUNING),
    "gip": None,  # made for the model's size and the budget
    "top_groups": qg.methods.top_groups(freeze=COOLING),
    "top_groups paid": qg.methods.top_groups(freeze=COOLING, paid_share=0.01),
    "datalens": qg.methods.datalens(),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run."""

    model: str
    method: str
    epsilon: float
    lr: float
    seed: int
    noise_multiplier: float
    train: float
    test: float
    seconds: float

    @property
    def key(self) -> tuple[str, str, float, float, int]:
        return self.model, self.method, self.epsilon, self.lr, self.seed


@cache
def parts_of(folder: str | None) -> Parts:
    return load("fashion-mnist", data_dir=folder, private=RECORDS, public=100, seed=0)


def make_model(name: str, parts: Parts) -> nn.Module:
    """The 26k CNN of PDP-SGD, or a wider one of the same kind (above 250k parameters)."""
    if name == "tanh_cnn":
        return build("tanh_cnn", parts.input_shape, parts.num_classes)
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, stride=2, padding=2), nn.Tanh(), nn.Conv2d(32, 64, 5, stride=2, padding=2), nn.Tanh(),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 96), nn.Tanh(), nn.Linear(96, parts.num_classes),
    )  # fmt: skip


@cache
def calibrated(method: str, size: int, epsilon: float) -> Mechanism:
    mechanism = METHODS[method] or qg.methods.gip(size, Plan(), keep=PRUNING)
    return qg.calibrate(mechanism, Plan(), epsilon=epsilon, delta=DELTA)


def train(name: str, method: str, epsilon: float, lr: float, seed: int, parts: Parts) -> Result:
    """One private run, reproducible (so its ε is nominal)."""
    torch.manual_seed(seed)
    model = make_model(name, parts)
    mechanism = calibrated(method, sum(p.numel() for p in model.parameters()), epsilon)
    started = time.perf_counter()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(AVERAGING))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    batches = qg.PoissonBatches(parts.private, rate=RATE, steps=STEPS, seed=seed)
    with qg.Privatizer(model, mechanism, batches, noise_source=qg.SeededSource(seed)) as private:
        private_steps(model, private, batches, optimizer, average)
    assert mechanism.noise_multiplier is not None
    return Result(
        model=name,
        method=method,
        epsilon=epsilon,
        lr=lr,
        seed=seed,
        noise_multiplier=mechanism.noise_multiplier,
        train=accuracy(average, parts.private),
        test=accuracy(average, parts.test),
        seconds=time.perf_counter() - started,
    )


def private_steps(
    model: nn.Module,
    private: qg.Privatizer,
    batches: qg.PoissonBatches,
    optimizer: torch.optim.Optimizer,
    average: AveragedModel,
) -> None:
    for batch in batches:
        for x, y in batch.split(512):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        optimizer.step()
        average.update_parameters(model)


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Percent right."""
    inputs, labels = data.tensors
    right = [
        int((model(x).argmax(1) == y).sum())
        for x, y in zip(inputs.split(1000), labels.split(1000), strict=True)
    ]
    return 100 * sum(right) / len(labels)


class Store:
    """Finished runs in a file, one line each."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path and path.exists() else []
        self.results = {result.key: result for result in (Result(**json.loads(line)) for line in lines)}

    def run(self, *key: object, folder: str | None) -> Result:
        if key not in self.results:
            model, method, epsilon, lr, seed = key
            result = train(str(model), str(method), float(epsilon), float(lr), int(seed), parts_of(folder))  # type: ignore[arg-type, call-overload]
            self.results[result.key] = result
            if self._path:
                with self._path.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
        return self.results[key]  # type: ignore[index]


def compare(
    store: Store,
    model: str,
    methods: Iterable[str],
    epsilons: Iterable[float],
    rates: list[float],
    seeds: int,
    folder: str | None,
) -> None:
    """Tune on seed 0, repeat the best learning rate on the other seeds."""
    for epsilon in epsilons:
        for method in methods:
            tried = [store.run(model, method, epsilon, lr, 0, folder=folder) for lr in rates]
            lr = max(tried, key=lambda result: result.train).lr
            for seed in range(1, seeds):
                store.run(model, method, epsilon, lr, seed, folder=folder)


def report(store: Store) -> None:
    """Every method at its best learning rate on seed 0."""
    results = list(store.results.values())
    print(f"{STEPS} steps, q={RATE:g}, δ={DELTA:g}; test accuracy in percent, mean ± std over seeds")
    print(
        f"{'model':<10}{'method':<18}{'ε':>5}{'σ':>8}{'lr (tried)':>16}{'seeds':>7}{'test':>14}{'train':>8}"
    )
    for model, epsilon in sorted({(result.model, result.epsilon) for result in results}):
        for method in METHODS:
            same = [r for r in results if (r.model, r.epsilon, r.method) == (model, epsilon, method)]
            if same:
                print(_row(same))


def _row(same: list[Result]) -> str:
    tried = [result for result in same if result.seed == 0]
    best = max(tried, key=lambda result: result.train)
    runs = [result for result in same if result.lr == best.lr]
    tests = [run.test for run in runs]
    spread = f" ± {statistics.stdev(tests):.1f}" if len(tests) > 1 else ""
    rates = f"{best.lr:g} ({', '.join(f'{lr:g}' for lr in sorted(result.lr for result in tried))})"
    return (
        f"{best.model:<10}{best.method:<18}{best.epsilon:>5g}{best.noise_multiplier:>8.3f}{rates:>16}{len(runs):>7}"
        f"{f'{statistics.mean(tests):.1f}{spread}':>14}{statistics.mean(run.train for run in runs):>8.1f}"
    )


def captured(epsilon: float, lr: float, folder: str | None) -> dict[str, list[EnergyReport]]:
    """Choosers of 10% along one DP-SGD run (research mode: not covered by ε)."""
    parts = parts_of(folder)
    torch.manual_seed(0)
    model = make_model("tanh_cnn", parts)
    size = sum(p.numel() for p in model.parameters())
    gip = qg.methods.gip(size, Plan(), keep=0.1).for_budget(Plan(), epsilon=epsilon, delta=DELTA).noise
    assert isinstance(gip, SelectedGaussian)
    assert gip.theta is not None
    groups = {"channels": TopGroups(0.9, redraw="step"), "groups of 32": TopGroups(0.9, 32, redraw="step")}
    data_free: dict[str, Representation | Selector] = {
        "random": RandomMask(0.9, redraw="step"),
        "mallows": Selector(gip.grouping, gip.theta, 0.1),
    }
    watching = {
        "its own choices": CapturedEnergy({**data_free, **groups}),
        "all releases": CapturedEnergy(groups, whole_history=True),
    }
    similarity = CosineSimilarity()
    batches = qg.PoissonBatches(parts.private, rate=RATE, steps=STEPS, seed=0)
    mechanism = calibrated("dp_sgd", size, epsilon)
    with qg.Privatizer(model, mechanism, batches, noise_source=qg.SeededSource(0), research=True) as private:
        for observer in (*watching.values(), similarity):
            private.watch(observer)
        private_steps(
            model, private, batches, torch.optim.SGD(model.parameters(), lr=lr), AveragedModel(model)
        )
    cosine = statistics.mean(similarity.values)
    print(
        f"DP-SGD, ε={epsilon:g}, lr={lr:g}, θ={gip.theta:.2e}; mean cosine of release and gradient {cosine:.3f}"
    )
    return {name: observer.reports for name, observer in watching.items()}


def print_captured(reports: list[EnergyReport], skip: int = 40) -> None:
    """Means over steps by gradient-to-noise ratio; the first epoch, where nothing is known yet, is left out."""
    names = list(reports[0].captured)
    print(f"{'gradient/noise':<16}{'steps':>6}" + "".join(f"{name:>17}" for name in names))
    for low, high in ((0.0, 0.02), (0.02, 0.04), (0.04, 0.06), (0.06, 0.1), (0.1, 9.0)):
        chosen = [r for r in reports if low <= r.gradient_to_noise < high and r.step >= skip]
        if chosen:
            means = [statistics.mean(report.captured[name] for report in chosen) for name in names]
            print(
                f"{f'{low:g} to {high:g}':<16}{len(chosen):>6}" + "".join(f"{mean:>17.3f}" for mean in means)
            )


def time_selection(coordinates: int = 1_000_000, repeats: int = 7) -> None:
    """Random numbers, true top-k and swaps of all groups."""
    grouping, source = Grouping(coordinates=coordinates, group_size=256), EntropySource()
    values, seconds, busy = torch.randn(coordinates), [], []
    for _ in range(repeats):
        started, cpu = time.perf_counter(), time.process_time()
        grouping.select(values, theta=1e-4, keep=0.1, bits=source.bits(grouping.draws))
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - cpu)
    print(
        f"{coordinates} coordinates: median {statistics.median(seconds):.3f} s, {statistics.median(busy):.3f} s of CPU"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", choices=("accuracy", "large", "captured", "selection", "report"))
    parser.add_argument("--data-dir")
    parser.add_argument("--json", type=Path, help="file of finished runs")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.5, 1.0, 2.0])
    parser.add_argument("--seeds", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.experiment == "selection":
        time_selection()
        return
    if options.experiment == "captured":
        for epsilon in options.epsilons or [2.0]:
            for history, reports in captured(epsilon, options.rates[0], options.data_dir).items():
                print(f"history of {history}")
                print_captured(reports)
        return
    store, large = Store(options.json), options.experiment == "large"
    if options.experiment == "report":
        report(store)
        return
    compare(
        store,
        "wide_cnn" if large else "tanh_cnn",
        options.methods,
        options.epsilons or ([2.0] if large else [0.8, 2.0]),
        options.rates,
        options.seeds or (1 if large else 3),
        options.data_dir,
    )
    report(store)


if __name__ == "__main__":
    main()

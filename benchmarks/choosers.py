"""What the choosers of sparse methods catch on real Fashion-MNIST, and what a choice costs.

python -m benchmarks.choosers captured   energy in 10% of the coordinates along a DP-SGD run
python -m benchmarks.choosers selection  time of one Mallows selection among a million coordinates
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import quietgrad as qg
from benchmarks.captured_energy import CapturedEnergy, EnergyReport, Selector
from quietgrad._noise.sources import EntropySource
from quietgrad._representations.masks.top_groups import TopGroups
from quietgrad.lab.data import load
from quietgrad.lab.diagnostics.sparse import CosineSimilarity
from quietgrad.lab.models import build
from quietgrad.methods.gip.noise import SelectedGaussian
from quietgrad.methods.gip.selection import Grouping

DELTA, RECORDS, BATCH, EPOCHS = 1e-5, 10_000, 250, 12
STEPS, RATE = EPOCHS * RECORDS // BATCH, BATCH / RECORDS


@dataclass(frozen=True)
class Plan:
    """What gip and calibration need to know of the batches."""

    rate: float = RATE
    steps: int = STEPS


def private_steps(
    model: nn.Module, private: qg.Privatizer, batches: qg.PoissonBatches, optimizer: torch.optim.Optimizer
) -> None:
    for batch in batches:
        for x, y in batch.split(512):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        optimizer.step()


def captured(epsilon: float, lr: float, folder: str | None) -> dict[str, list[EnergyReport]]:
    """Choosers of 10% along one DP-SGD run (research mode: not covered by ε)."""
    parts = load("fashion-mnist", data_dir=folder, private=RECORDS, public=100, seed=0)
    torch.manual_seed(0)
    model = build("tanh_cnn", parts.input_shape, parts.num_classes)
    size = sum(p.numel() for p in model.parameters())
    gip = qg.methods.gip(size, Plan(), keep=0.1).for_budget(Plan(), epsilon=epsilon, delta=DELTA).noise
    assert isinstance(gip, SelectedGaussian)
    assert gip.theta is not None
    groups = {"channels": TopGroups(0.9, redraw="step"), "groups of 32": TopGroups(0.9, 32, redraw="step")}
    data_free: dict[str, qg.Representation | Selector] = {
        "random": qg.RandomMask(0.9, redraw="step"),
        "mallows": Selector(gip.grouping, gip.theta, 0.1),
    }
    watching = {
        "its own choices": CapturedEnergy({**data_free, **groups}),
        "all releases": CapturedEnergy(groups, whole_history=True),
    }
    similarity = CosineSimilarity()
    batches = qg.PoissonBatches(parts.private, rate=RATE, steps=STEPS, seed=0)
    mechanism = qg.calibrate(qg.methods.dp_sgd(), Plan(), epsilon=epsilon, delta=DELTA)
    with qg.Privatizer(model, mechanism, batches, noise_source=qg.SeededSource(0), research=True) as private:
        for observer in (*watching.values(), similarity):
            private.watch(observer)
        private_steps(model, private, batches, torch.optim.SGD(model.parameters(), lr=lr))
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
    parser.add_argument("experiment", choices=("captured", "selection"))
    parser.add_argument("--data-dir")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[2.0])
    parser.add_argument("--rate", type=float, default=1.0, help="the learning rate of the watched run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.experiment == "selection":
        time_selection()
        return
    for epsilon in options.epsilons:
        for history, reports in captured(epsilon, options.rate, options.data_dir).items():
            print(f"history of {history}")
            print_captured(reports)


if __name__ == "__main__":
    main()

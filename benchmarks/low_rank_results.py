"""Accuracy of the low-rank methods on real Fashion-MNIST with a wide perceptron, for docs/results/low_rank.md.

    python -m benchmarks.low_rank_results --data-dir DIR --json runs.jsonl [--records 12000]

12,000 private images (or --records), an MLP 784-512-256-10 of tanh (535,818 parameters), 300 steps at rate 0.05,
averaged weights. Each method's learning rate is tuned on seed 0 by its training accuracy, in factors of 2 from
--first-rate until it falls on both sides, and then kept for all seeds. Finished runs are kept in the --json file (one
line each) and not run again. Seeds fix the initial weights, the batches and the noise (the carriers' public randomness
is fresh in every run), and tuning looks at private data, so ε is nominal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.data import Parts, load
from quietgrad.lab.models import build
from quietgrad.lab.run.averaging import weight_average
from quietgrad.mechanism.mechanism import Mechanism

RATE, STEPS, DELTA, CLIP, DECAY = 0.05, 300, 1e-5, 0.5, 0.97

rgp = partial(qg.methods.rgp, clip=CLIP)
METHODS: dict[str, Callable[[], Mechanism]] = {
    "dp_sgd": lambda: qg.methods.dp_sgd(clip=CLIP),
    "rgp r=8": lambda: rgp(rank=8),
    "rgp r=8 paper": lambda: rgp(rank=8, release="paper"),
    "rgp r=8 left": lambda: rgp(rank=8, release="left"),
    "rgp_random r=8": lambda: qg.methods.rgp_random(rank=8, clip=CLIP),
    "dp_power_sgd r=8": lambda: qg.methods.dp_power_sgd(rank=8, clip=CLIP),
    "dp_power_sgd r=8 feedback": lambda: qg.methods.dp_power_sgd(rank=8, clip=CLIP, error_feedback=True),
    "dp_sgd C=0.1": lambda: qg.methods.dp_sgd(clip=0.1),
    "rgp r=8 C=0.1": lambda: rgp(rank=8, clip=0.1),
    "rgp_random r=8 C=0.1": lambda: qg.methods.rgp_random(rank=8, clip=0.1),
    "rgp r=16": lambda: rgp(rank=16),
    "rgp r=8 K=8": lambda: rgp(rank=8, iterations=8),
    "rgp r=8 warm-up 30": lambda: rgp(rank=8, warmup_steps=30),
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run: accuracies in percent, of the averaged weights."""

    method: str
    epsilon: float
    lr: float
    seed: int
    train: float
    test: float
    seconds: float
    records: int = 12_000

    @property
    def key(self) -> tuple[int, str, float, float, int]:
        return self.records, self.method, self.epsilon, self.lr, self.seed


@cache
def data(folder: str | None, records: int) -> Parts:
    return load("fashion-mnist", data_dir=folder, private=records, seed=0)


@cache
def multiplier(epsilon: float) -> float:
    """σ is the same for every method here: each step is one Gaussian of that multiplier."""
    if epsilon == float("inf"):
        return 0.0
    batches = qg.PoissonBatches(TensorDataset(torch.zeros(1)), rate=RATE, steps=STEPS)
    sigma = qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=epsilon, delta=DELTA).noise_multiplier
    assert sigma is not None
    return sigma


def train(parts: Parts, name: str, epsilon: float, lr: float, seed: int) -> Run:
    """One private run with plain SGD, momentum 0."""
    started = time.perf_counter()
    torch.manual_seed(seed)
    model = build("mlp", parts.input_shape, parts.num_classes, hidden=(512, 256))
    average = weight_average(model, DECAY)
    batches = qg.PoissonBatches(parts.private, rate=RATE, steps=STEPS, seed=seed)
    mechanism = METHODS[name]().with_noise(multiplier(epsilon))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with qg.Privatizer(model, mechanism, batches, noise_source=qg.SeededSource(seed)) as private:
        for batch in batches:
            for x, y in batch.split(2048):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
            average.update_parameters(model)
    return Run(
        method=name,
        epsilon=epsilon,
        lr=lr,
        seed=seed,
        train=accuracy(average.module, parts.private),
        test=accuracy(average.module, parts.test),
        seconds=time.perf_counter() - started,
        records=len(parts.private),
    )


@torch.no_grad()
def accuracy(model: nn.Module, examples: TensorDataset) -> float:
    inputs, labels = examples.tensors
    return 100 * float((model(inputs).argmax(1) == labels).float().mean())


class Finished:
    """Runs on disk as they finish."""

    def __init__(self, path: Path | None, folder: str | None, records: int) -> None:
        self._path, self._folder, self._records = path, folder, records
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._runs = {run.key: run for run in (Run(**json.loads(line)) for line in lines)}

    def get(self, name: str, epsilon: float, lr: float, seed: int) -> Run:
        key = (self._records, name, epsilon, lr, seed)
        if key not in self._runs:
            self._runs[key] = train(data(self._folder, self._records), *key[1:])
            line = json.dumps(asdict(self._runs[key]))
            print(line, flush=True)
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(line + "\n")
        return self._runs[key]


def tuned(finished: Finished, name: str, epsilon: float, first_rate: float) -> Run:
    """The best run of seed 0 by training accuracy: no rate twice or half as large is better."""
    best = finished.get(name, epsilon, first_rate, 0)
    for factor in (2.0, 0.5):
        while (other := finished.get(name, epsilon, best.lr * factor, 0)).train > best.train:
            best = other
    return best


def compare(
    finished: Finished, names: list[str], epsilons: list[float], seeds: int, first_rate: float
) -> None:
    """Tune on seed 0, repeat on the others, print the table."""
    rows = []
    for name in names:
        for epsilon in epsilons:
            best = tuned(finished, name, epsilon, first_rate)
            tests = [finished.get(name, epsilon, best.lr, seed).test for seed in range(seeds)]
            spread = statistics.stdev(tests) if seeds > 1 else 0.0
            rows.append(
                f"| {name} | {epsilon:g} | {best.lr:g} | {statistics.mean(tests):.2f} ± {spread:.2f} |"
            )
            print(rows[-1], flush=True)
    print("| method | ε | lr | test accuracy % |\n|---|---|---|---|\n" + "\n".join(rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", help="where the data sets are; default: where `quietgrad data` looks")
    parser.add_argument("--json", type=Path, help="file that keeps finished runs, one line each")
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated")
    parser.add_argument("--epsilons", default="2,8", help="comma-separated; inf for no noise")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--records", type=int, default=12_000)
    parser.add_argument(
        "--first-rate", type=float, default=2.0, help="where the search of the learning rate starts"
    )
    options = parser.parse_args()
    epsilons = [float(value) for value in options.epsilons.split(",")]
    finished = Finished(options.json, options.data_dir, options.records)
    compare(finished, options.methods.split(","), epsilons, options.seeds, options.first_rate)


if __name__ == "__main__":
    main()

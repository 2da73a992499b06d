"""Trainings with banded noise against DP-SGD at the same ε, both tuned alike.

    python -m benchmarks.banded_training --data-dir DATA --results FILE.jsonl [--json]

Two tasks on Fashion-MNIST: a 26k-parameter CNN from scratch, and a linear head on frozen wavelet features with
momentum 0.9. Each in one epoch, in three, and in 40 short ones of fewer records. Both contenders
have the same grid of learning rates, which grows where its best rate is at an end, and the choice between the last
weights and their average. Rate and weights are chosen on other training images with one noise. Three other noises are
judged by the test images. The number of bands is that of `qg.choose_bands`; where that is 1 both are DP-SGD. Finished
runs are lines of the file and are not run again, so a study that was stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.preconditioned import Images, images, percent_right
from quietgrad.features.encoders import Scatter, encode
from quietgrad.lab.models import build
from quietgrad.lab.run.averaging import weight_average

CLIP, DECAY, DELTA = 0.1, 0.95, 1e-5
PLANS = {
    "1 epoch": (20_000, 80),
    "3 epochs": (20_000, 240),
    "40 short epochs": (2_000, 320),
    "head, 1 epoch": (20_000, 80),
    "head, 3 epochs": (20_000, 240),
    "head, 40 short epochs": (2_000, 320),
}
"""Records and steps; the expected batch is 250 in all of them."""
BATCH = 250
RATES = (1.0, 2.0, 4.0)
"""Learning rates at clip 1, without momentum."""
HEAD_RATES = (64.0, 128.0, 256.0)
"""Features have norm 1, and gradients of a good head are small."""
HEAD_MOMENTUM = 0.9


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One training: `bands` 1 is DP-SGD, 0 lets `qg.choose_bands` choose."""

    plan: str
    epsilon: float
    bands: int
    rate: float = 1.0
    momentum: float = 0.0
    judge: str = "others"
    seed: int = 0

    @property
    def key(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)


def train(setting: Setting, found: Images) -> dict[str, Any]:
    """Accuracy in percent of the last weights and of their average."""
    records, steps = PLANS[setting.plan]
    plan: dict[str, Any] = {"rate": BATCH / records, "steps": steps}
    budget: dict[str, Any] = {"epsilon": setting.epsilon, "delta": DELTA}
    torch.manual_seed(setting.seed)
    shape = tuple(found.train.tensors[0].shape[1:])
    head = setting.plan.startswith("head")
    model = nn.Linear(shape[0], found.classes) if head else build("tanh_cnn", shape, found.classes)
    choice = qg.choose_bands(
        **plan, **budget, momentum=setting.momentum, most=1 if setting.bands == 1 else 64
    )
    batches = qg.PoissonBatches(found.train, **plan, groups=choice.bands)
    mechanism = qg.calibrate(replace(qg.methods.dp_sgd(clip=CLIP), noise=choice.noise), batches, **budget)
    rate = setting.rate / CLIP * (1 - setting.momentum)
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=setting.momentum)
    average = weight_average(model, DECAY)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for x, y in batch.split(2 * BATCH):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
            average.update_parameters(model)
    judged = (found.others if setting.judge == "others" else found.test).tensors
    return {
        "last": percent_right(model.eval(), *judged),
        "average": percent_right(average.module.eval(), *judged),
        "used_bands": choice.bands,
        "relative_noise": round(choice.relative_noise, 3),
    }


def data_of(plan: str, data_dir: Path | None) -> Images:
    """The images of a plan, or their features."""
    if not plan.startswith("head"):
        return images("fashion-mnist", PLANS[plan][0], data_dir)
    whole = features(data_dir)
    train = TensorDataset(*(tensor[: PLANS[plan][0]] for tensor in whole.train.tensors))
    return dataclasses.replace(whole, train=train)


@cache
def features(data_dir: Path | None) -> Images:
    """Wavelet features of norm 1, which need no data to be made."""
    found = images("fashion-mnist", max(records for records, _ in PLANS.values()), data_dir)
    encoder = Scatter(tuple(found.train.tensors[0].shape[1:]))

    def rows(part: TensorDataset) -> TensorDataset:
        x, y = part.tensors
        made = torch.cat([F.normalize(encode(encoder, some).flatten(1)) for some in x.split(500)])
        return TensorDataset(made, y)

    return dataclasses.replace(
        found, train=rows(found.train), others=rows(found.others), test=rows(found.test)
    )


class Results:
    """Finished trainings, one JSON line each."""

    def __init__(self, file: Path, data_dir: Path | None) -> None:
        self.file, self.data_dir = file, data_dir

    def __call__(self, setting: Setting) -> dict[str, Any]:
        """Look a training up, or make it and add a line."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        known = {line["key"]: line for line in map(json.loads, lines)}
        if setting.key not in known:
            start = time.process_time()
            line = {"key": setting.key, **train(setting, data_of(setting.plan, self.data_dir))}
            line["seconds"] = round(time.process_time() - start)
            with self.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
            return line
        return dict(known[setting.key])


def grid(plan: str) -> tuple[float, ...]:
    """Rates that every contender of a plan tries."""
    return HEAD_RATES if plan.startswith("head") else RATES


def choose(results: Results, base: Setting) -> tuple[Setting, str]:
    """The best rate, and which weights, on other training images."""
    found: dict[float, dict[str, Any]] = {}
    wanted = list(grid(base.plan))
    while wanted:
        rate = wanted.pop(0)
        found[rate] = results(replace(base, rate=rate))
        if not wanted:
            best = max(found, key=lambda each: max(found[each]["last"], found[each]["average"]))
            ends = {min(found): best / 2, max(found): best * 2}
            wanted = [ends[best]] if best in ends and ends[best] not in found else []
    weights = max(("last", "average"), key=lambda kind: found[best][kind])
    return replace(base, rate=best), weights


def rows(results: Results, plans: list[str], epsilons: list[float], seeds: int) -> Iterator[dict[str, Any]]:
    """One row a contender."""
    for plan in plans:
        for epsilon in epsilons:
            for bands in (1, 0):
                momentum = HEAD_MOMENTUM if plan.startswith("head") else 0.0
                base = Setting(plan=plan, epsilon=epsilon, bands=bands, momentum=momentum)
                if results(replace(base, rate=grid(plan)[0]))["used_bands"] == 1:
                    base = replace(base, bands=1)  # one band is DP-SGD, and is tuned once
                chosen, weights = choose(results, base)
                judged = [results(replace(chosen, judge="test", seed=seed)) for seed in range(1, seeds + 1)]
                accuracies = [one[weights] for one in judged]
                yield {
                    "plan": plan,
                    "epsilon": epsilon,
                    "bands": judged[0]["used_bands"],
                    "relative_noise": judged[0]["relative_noise"],
                    "rate": chosen.rate,
                    "weights": weights,
                    "accuracy": round(statistics.mean(accuracies), 2),
                    "runs": [round(each, 2) for each in accuracies],
                }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--plans", nargs="+", choices=tuple(PLANS), default=list(PLANS))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[8.0, 3.0, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    table = []
    for row in rows(Results(args.results, args.data_dir), args.plans, args.epsilon, args.seeds):
        table.append(row)
        if not args.json:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.json:
        print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()

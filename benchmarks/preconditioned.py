"""Preconditioned DP-SGD against DP-SGD, both tuned alike, on whole trainings.

    python -m benchmarks.preconditioned --data fashion-mnist --data-dir DATA --epsilon 1 2 --results FILE.jsonl

Both contenders see centred inputs, average their weights, and have the same grid of learning rates and clips. The
setting is chosen on other training images with one noise. Three other noises are judged by the test images. Probes are
made-up images: no data and no budget. Finished runs are lines of the file and not run again, so that a run that was
stopped goes on. `--methods gep gep+scaled` compares a paper's method with its own form in scaled coordinates, on the
same grid. `--records`, `--steps`, `--batch` and `--model` set the size, `--damping rule 1 10` makes a contender of the
library's rule and of each number; `--json` prints the table as JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.features.synthetic import synthetic_inputs
from quietgrad.lab.data import embedded, load
from quietgrad.lab.models import build
from quietgrad.lab.run.averaging import weight_average

OTHERS = 4_000
"""Training images on which settings are chosen; the demo data have 2,000."""
CENTRES = {
    "embedded": ((0.1307, 0.3081), (0.2860, 0.3530)),
    "fashion-mnist": ((0.1307, 0.3081), (0.2860, 0.3530)),
}
"""Constants that the lab scales with, and the published ones of the data set itself."""
SCALED = "+scaled"
"""How the form of a method in scaled coordinates ends."""
RANKS = {"gep": 50, "biased_gep": 50, "rgp": 4}
METHODS = ("dp_sgd", "preconditioned", *(name + end for name in RANKS for end in ("", SCALED)))
DECAY, PROBES, DELTA = 0.98, 400, 1e-5


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One training. `rate` is the learning rate at clip 1: the optimizer's is rate / clip."""

    method: str
    epsilon: float
    rate: float
    clip: float
    data: str = "fashion-mnist"
    model: str = "tanh_cnn"
    records: int = 10_000
    steps: int = 300
    batch: int = 500
    power: float = 0.5
    damping: float | None = 1.0
    sides: str = "input"
    refresh: int = 0
    probes: str = "made-up"
    judge: str = "others"
    seed: int = 0

    @property
    def scaled(self) -> bool:
        """Whether the method has a scaling, of its own or in front of it."""
        return self.method == "preconditioned" or self.method.endswith(SCALED)

    @property
    def key(self) -> str:
        """What a line of the file is found by; what is not scaled has no scaling."""
        fields = dataclasses.asdict(self)
        unused = [] if self.scaled else ["power", "damping", "sides", "refresh"]
        for name in [*unused, *(["probes"] if self.method in ("dp_sgd", "rgp") else [])]:
            del fields[name]
        return json.dumps(fields, sort_keys=True)


@dataclass(frozen=True)
class Images:
    """Records to train on, to choose settings by, to judge by, and public ones without labels."""

    train: TensorDataset
    others: TensorDataset
    test: TensorDataset
    public: Tensor
    classes: int


@cache
def images(data: str, records: int, data_dir: Path | None) -> Images:
    """Disjoint parts; the same for every contender."""
    wanted = records + OTHERS
    parts = embedded() if data == "embedded" else load(data, data_dir=data_dir, private=wanted, public=PROBES)
    x, y = parts.private.tensors
    test_x, test_y = parts.test.tensors
    centre = _centre(data)
    x, test_x = centre(x), centre(test_x)
    return Images(
        TensorDataset(x[:records], y[:records]),
        TensorDataset(x[records:], y[records:]),
        TensorDataset(test_x, test_y),
        centre(parts.public_inputs),
        parts.num_classes,
    )


def _centre(data: str) -> Any:
    if data not in CENTRES:
        return lambda x: x
    (mean, std), (own_mean, own_std) = CENTRES[data]
    return lambda x: (x * std + mean - own_mean) / own_std


def probe_losses(setting: Setting, found: Images) -> Any:
    """Losses of made-up or public images under random labels."""
    shape = found.train.tensors[0].shape[1:]
    inputs = found.public if setting.probes == "public" else synthetic_inputs(PROBES, shape, seed=1)
    return qg.public_losses.random_label_losses(inputs, found.classes, chunk=PROBES)


def mechanism_of(setting: Setting, found: Images) -> qg.Mechanism:
    """Not calibrated."""
    plain = setting.method.removesuffix(SCALED)
    if plain == "preconditioned":
        return qg.methods.dp_sgd(clip=setting.clip) @ _scaling(setting, found)
    mechanism = _plain(plain, setting, found)
    return mechanism @ _scaling(setting, found) if setting.scaled else mechanism


def _plain(name: str, setting: Setting, found: Images) -> qg.Mechanism:
    """The method by itself."""
    if name == "dp_sgd":
        return qg.methods.dp_sgd(clip=setting.clip)
    if name == "rgp":
        return qg.methods.rgp(rank=RANKS[name], clip=setting.clip)
    make: Any = {"gep": qg.methods.gep, "biased_gep": qg.methods.biased_gep}[name]
    residual = {"residual_clip": setting.clip / 2} if name == "gep" else {}
    public = probe_losses(setting, found)
    mechanism: qg.Mechanism = make(public, rank=RANKS[name], clip=setting.clip, refresh_every=4, **residual)
    return mechanism


def _scaling(setting: Setting, found: Images) -> qg.Preconditioned:
    return qg.Preconditioned(
        probes=probe_losses(setting, found),
        power=setting.power,
        damping=setting.damping,
        sides="both" if setting.sides == "both" else "input",
        refresh_every=setting.refresh or None,
    )


def build_model(name: str, shape: tuple[int, ...], classes: int) -> torch.nn.Module:
    """A model of the lab; a perceptron by its widths, `mlp-512-128`."""
    name, *hidden = name.split("-")
    return build(name, shape, classes, **({"hidden": tuple(map(int, hidden))} if hidden else {}))


def train(setting: Setting, found: Images) -> float:
    """The accuracy in percent of the averaged weights, on the images that the setting is judged by."""
    torch.manual_seed(setting.seed)
    records = found.train.tensors[0]
    model = build_model(setting.model, tuple(records.shape[1:]), found.classes)
    batches = qg.PoissonBatches(found.train, rate=setting.batch / setting.records, steps=setting.steps)
    mechanism = qg.calibrate(mechanism_of(setting, found), batches, epsilon=setting.epsilon, delta=DELTA)
    optimizer = torch.optim.SGD(model.parameters(), setting.rate / setting.clip)
    average = weight_average(model, DECAY)
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for x, y in batch.split(setting.batch):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
            optimizer.step()
            average.update_parameters(model)
    judged = found.others if setting.judge == "others" else found.test
    return percent_right(average.module.eval(), *judged.tensors)


@torch.no_grad()
def percent_right(model: torch.nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy in percent."""
    right = sum(
        int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(1000), y.split(1000), strict=True)
    )
    return 100.0 * right / len(y)


class Results:
    """Finished trainings, one JSON line each."""

    def __init__(self, file: Path, data_dir: Path | None) -> None:
        self.file, self.data_dir = file, data_dir

    def known(self) -> dict[str, float]:
        """Read the file again: several processes may add to it."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        # A process that was killed while it wrote leaves part of a line: that training counts as not done.
        return {line["key"]: line["accuracy"] for line in map(_parsed, lines) if line is not None}

    def accuracy(self, setting: Setting) -> float:
        """Look it up, or train and add a line."""
        known = self.known()
        if setting.key in known:
            return known[setting.key]
        start = time.process_time()
        accuracy = train(setting, images(setting.data, setting.records, self.data_dir))
        line = {"key": setting.key, "accuracy": accuracy, "seconds": round(time.process_time() - start)}
        with self.file.open("a") as file:
            # The first line end closes a part of a line that a killed process may have left.
            file.write("\n" + json.dumps(line) + "\n")
        return accuracy


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found


def choose(results: Results, base: Setting, rates: list[float], clips: list[float]) -> Setting:
    """The best rate and clip on other training images; the grid grows where its best rate is at an end."""
    found: dict[tuple[float, float], float] = {}
    for clip in clips:
        wanted = list(rates)
        while wanted:
            rate = wanted.pop(0)
            found[rate, clip] = results.accuracy(dataclasses.replace(base, rate=rate, clip=clip))
            if not wanted:
                mine = {r: a for (r, c), a in found.items() if c == clip}
                best = max(mine, key=lambda r: mine[r])
                ends = {min(mine): best / 2, max(mine): best * 2}
                wanted = [ends[best]] if best in ends and ends[best] not in mine else []
    rate, clip = max(found, key=lambda at: found[at])
    return dataclasses.replace(base, rate=rate, clip=clip)


def rows(
    results: Results, bases: list[Setting], rates: list[float], clips: list[float], seeds: int
) -> Iterator[dict[str, Any]]:
    """One row a contender: the chosen setting, and its accuracy over noises that chose nothing."""
    for base in bases:
        chosen = choose(results, base, rates, clips)
        judged = [
            results.accuracy(dataclasses.replace(chosen, judge="test", seed=seed))
            for seed in range(1, seeds + 1)
        ]
        yield {
            "method": base.method,
            "damping": ("rule" if base.damping is None else base.damping) if base.scaled else None,
            "epsilon": base.epsilon,
            "rate": chosen.rate,
            "clip": chosen.clip,
            "accuracy": round(statistics.mean(judged), 2),
            "standard_error": round(statistics.stdev(judged) / len(judged) ** 0.5, 2) if seeds > 1 else None,
            "runs": [round(each, 2) for each in judged],
        }


def _damping(text: str) -> float | None:
    return None if text == "rule" else float(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--model", default="tanh_cnn")
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0])
    parser.add_argument("--clips", type=float, nargs="+", default=[0.3, 1.0])
    parser.add_argument("--methods", nargs="+", default=["dp_sgd", "preconditioned"], choices=METHODS)
    parser.add_argument("--power", type=float, default=0.5)
    parser.add_argument("--damping", type=_damping, nargs="*", default=[1.0])
    parser.add_argument("--sides", default="input")
    parser.add_argument("--refresh", type=int, default=0)
    parser.add_argument("--probes", choices=("made-up", "public"), default="made-up")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = Results(args.results, args.data_dir)
    shared = {name: getattr(args, name) for name in ("data", "model", "records", "steps", "batch")}
    scaling = {name: getattr(args, name) for name in ("power", "sides", "refresh", "probes")}
    every = [
        Setting(method=method, epsilon=epsilon, rate=1.0, clip=1.0, damping=damping, **shared, **scaling)
        for epsilon in args.epsilon
        for method in args.methods
        for damping in args.damping
    ]
    bases = list({base.key: base for base in every}.values())
    table = []
    for row in rows(results, bases, args.rates, args.clips, args.seeds):
        table.append(row)
        if not args.json:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    if args.json:
        print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()

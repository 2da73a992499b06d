"""User-level privacy: what protecting users costs, and what it gains over record-level training with group privacy.

    python -m benchmarks.users cost
    python -m benchmarks.users accuracy [--seeds 3]

`cost`: a step with users of one record each against the same step with records. `accuracy`: the embedded data, whose
images belong to users of 1 to 50 of them, at user-level ε = 2 with a linear model of the pixels. "group privacy"
is record-level training whose noise is raised until a user of 50 records (or of 10, the others left out) has ε = 2:
by the accountant for a Binomial(k, q) number of clipped records a step (dp-accounting's mixture of Gaussians), which is
tight, and by the textbook's ε/k.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import binom
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.engine import alternate
from benchmarks.models import SETTINGS, Setting
from quietgrad.lab.data import Parts
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.metrics import accuracy
from quietgrad.lab.run.setup import set_up
from quietgrad.lab.run.task import load_task
from quietgrad.lab.run.train import losses_of

EPSILON, DELTA = 2.0, 1e-5
RECORDS_OF_A_STEP = 600
"""What a step works on, on average, whichever the unit: the methods are compared at equal work."""
STEPS = 60
METHODS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "dp_sgd": ({"clip": 1.0}, (0.25, 1.0)),
    "random_freeze": ({"freeze": 0.7, "clip": 1.0}, (0.5, 2.0)),
    "gep": (
        {"rank": 50, "clip": 1.0, "residual_clip": 1.0, "split": "energy", "refresh_every": 4},
        (0.25, 1.0),
    ),
}
"""Options and the learning rates that are tried; the best is shown, for every row alike."""


# ---- cost -----------------------------------------------------------------------------------------------------


def private_step(setting: Setting, **users: Any) -> Callable[[], None]:
    """One private step on all rows of the setting's batch."""
    torch.manual_seed(0)
    model, x = setting.model(), setting.inputs(setting.batch)
    data = TensorDataset(x, torch.zeros(len(x), dtype=torch.long))
    batches = qg.PoissonBatches(data, rate=1.0, steps=10_000, seed=0, **users)
    private = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    drawn = iter(batches)

    def step() -> None:
        for inputs, labels in next(drawn).split(len(x)):
            private.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        private.release()
        optimizer.step()

    return step


def cost(names: list[str], repeats: int) -> str:
    lines = [
        "| model (batch) | records, ms | users of one record, ms | more | users of four, ms |",
        "|---|---|---|---|---|",
    ]
    for setting in (setting for setting in SETTINGS if setting.name in names):
        one, four = np.arange(setting.batch), np.arange(setting.batch) // 4
        best = alternate(
            {
                "plain": private_step(setting),
                "one": private_step(setting, unit=one, most_records=4),
                "four": private_step(setting, unit=four, most_records=4),
            },
            repeats,
        )
        more = 100 * (best["one"] / best["plain"] - 1)
        lines.append(
            f"| {setting.name} ({setting.batch}) | {best['plain']:.1f} | {best['one']:.1f} | {more:+.1f}% | "
            f"{best['four']:.1f} |"
        )
    return "\n".join(lines)


# ---- accuracy -------------------------------------------------------------------------------------------------


def group_noise(rate: float, records: int) -> float:
    """σ of record-level steps at which a user of so many records has user-level (ε, δ)."""
    counts = np.arange(records + 1)
    likely = binom.pmf(counts, records, rate)
    kept = likely > 1e-15

    def epsilon(sigma: float) -> float:
        loss = pld.from_mixture_gaussian_mechanism(
            sigma, list(counts[kept].astype(float)), list(likely[kept] / likely[kept].sum()),
            value_discretization_interval=1e-2,
        )  # fmt: skip
        return float(loss.self_compose(STEPS).get_epsilon_for_delta(DELTA))

    return bisected(epsilon, 1.0, 400.0)


def textbook_noise(rate: float, records: int) -> float:
    """σ at which (ε/k, δ·(e^{ε/k} − 1)/(e^ε − 1)) holds for a record: group privacy of k records gives (ε, δ)."""
    each = EPSILON / records
    delta = DELTA * math.expm1(each) / math.expm1(EPSILON)
    plan = dataclasses.make_dataclass("Plan", ["rate", "steps"])(rate, STEPS)
    return float(qg.calibrate(qg.methods.dp_sgd(clip=1.0), plan, epsilon=each, delta=delta).multiplier(0))


def bisected(epsilon: Callable[[float], float], low: float, high: float) -> float:
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if epsilon(middle) <= EPSILON else (middle, high)
    return high


def config(method: str, lr: float, seed: int, batch: float, units: int, **privacy: Any) -> Config:
    options, _ = METHODS[method]
    return parse_config(
        {
            "model": {"name": "linear"},
            "privacy": {"delta": DELTA, **privacy},
            "method": {"name": method, **options},
            "training": {"batch": batch, "epochs": STEPS * batch / units, "lr": lr, "seed": seed},
            "averaging": {"decay": 0.9},
        }
    )


def trained(chosen: Config, parts: Parts, most_records: int | None) -> float:
    """Test accuracy of a private run of `STEPS` steps."""
    if most_records is not None:
        chosen = chosen.model_copy(
            update={"data": chosen.data.model_copy(update={"most_records": most_records})}
        )
    setup = set_up(chosen, parts=parts)
    mechanism = build_mechanism(chosen.method, chosen.privacy, parts, setup.model, setup.batches)
    with qg.Privatizer(setup.model, mechanism, setup.batches, deterministic=True) as private:
        for batch in setup.batches:
            for x, y in batch.split(512):
                private.backward(losses_of(setup.model, x, y, chosen))
            private.release()
            setup.update()
    return accuracy(setup.evaluated, parts.test)


def without_more_than(parts: Parts, records: int) -> Parts:
    """At most so many records of each user, the others left out for good."""
    assert parts.users is not None
    order = np.argsort(parts.users, kind="stable")
    ids = parts.users[order]
    place = np.arange(len(ids)) - np.searchsorted(ids, ids)
    kept = np.sort(order[place < records])
    private = TensorDataset(*(tensor[kept] for tensor in parts.private.tensors))
    return dataclasses.replace(parts, private=private, users=parts.users[kept])


def accuracies(seeds: int) -> str:
    parts = load_task(parse_config({"data": {"unit": "person", "most_records": 1}}))
    assert parts.users is not None
    users = len(np.unique(parts.users))
    rows: list[tuple[str, Parts, int | None, float, int, dict[str, float]]] = []
    for most in (10, 1, 50):
        each = np.minimum(np.unique(parts.users, return_counts=True)[1], most).mean()
        batch = min(users, RECORDS_OF_A_STEP / each)
        rows.append(
            (f"users, at most {most} records a step", parts, most, batch, users, {"epsilon": EPSILON})
        )
    for most in (10, 50):
        bounded = dataclasses.replace(without_more_than(parts, most), users=None)
        records = len(bounded.private)
        rate = RECORDS_OF_A_STEP / records
        noise = {
            "group privacy, tight": group_noise(rate, most),
            "group privacy, ε/k": textbook_noise(rate, most),
        }
        for how, sigma in noise.items():
            name = f"records, at most {most} of a user ({how}), σ = {sigma:.1f}"
            rows.append((name, bounded, None, RECORDS_OF_A_STEP, records, {"noise_multiplier": sigma}))
    lines = ["| unit | " + " | ".join(METHODS) + " |", "|---|" + "---|" * len(METHODS)]
    for name, task, used, batch, units, privacy in rows:
        cells = [best_rate(method, task, used, batch, units, privacy, seeds) for method in METHODS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def best_rate(
    method: str,
    task: Parts,
    most: int | None,
    batch: float,
    units: int,
    privacy: dict[str, float],
    seeds: int,
) -> str:
    """Mean ± standard deviation at the best learning rate."""
    tried = {}
    for lr in METHODS[method][1]:
        runs = [
            trained(config(method, lr, seed, batch, units, **privacy), task, most) for seed in range(seeds)
        ]
        tried[lr] = runs
    lr, runs = max(tried.items(), key=lambda pair: statistics.mean(pair[1]))
    spread = statistics.stdev(runs) if len(runs) > 1 else 0.0
    return f"{100 * statistics.mean(runs):.1f} ± {100 * spread:.1f} (lr {lr:g})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("cost", "accuracy"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", default="mlp,tanh_cnn,transformer")
    options = parser.parse_args()
    if options.what == "cost":
        print(cost(options.models.split(","), options.repeats))
    else:
        print(accuracies(options.seeds))


if __name__ == "__main__":
    main()

"""What a private step costs beside its arithmetic: calls in Python and processor time, on small models.

    python -m benchmarks.fixed_costs                  an MLP of 10,000 parameters, Opacus' IMDB example, a transformer
    python -m benchmarks.fixed_costs --models small   one of them
    python -m benchmarks.fixed_costs --json           {"models": [{"name", "calls", "plain_us", "private_us", …}, …]}

Microseconds of one thread's processor time, the best of `--repeats` steps in steady state, plain and private in turns.
Questions to the loop are left out: `benchmarks.runtime_checks` counts them. Calls are those of Python's profiler,
functions written in C among them; their number does not depend on what else runs.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import json
import pstats
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks import opacus_examples
from benchmarks.contenders import MANY, data
from benchmarks.models import SETTINGS
from quietgrad._independence.in_loop import LoopCheck

WARM_UP, PROFILED = 6, 4
MODELS = ("small", "imdb", "transformer")

Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class FixedCost:
    """One model's figures, of a step each."""

    name: str
    calls: float
    plain_us: float
    private_us: float
    ratio: float


def parts(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with one batch of its inputs and labels."""
    torch.manual_seed(0)
    if name == "small":
        layers = (nn.Linear(100, 80), nn.ReLU(), nn.Linear(80, 16), nn.ReLU(), nn.Linear(16, 10))
        return nn.Sequential(*layers), torch.randn(64, 100), torch.randint(0, 10, (64,))
    if name in opacus_examples.BATCHES:
        model, (x, y), _ = opacus_examples.parts(name)
        return model, x, y
    setting = next(setting for setting in SETTINGS if setting.name == name)
    return setting.model(), *data(setting)


def steps(name: str) -> tuple[Step, Step]:
    """A plain step and a private one, past the questions of the first micro-batches."""
    model, x, y = parts(name)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), lr=1e-3) for each in (twin, model)]

    def plain() -> None:
        optimizers[0].zero_grad()
        F.cross_entropy(twin(x), y).backward()
        optimizers[0].step()

    batches = qg.PoissonBatches(TensorDataset(x, y), rate=1.0, steps=MANY)
    privatizer = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches)
    drawn = iter(batches)

    def private() -> None:
        for rows, labels in next(drawn).split(len(x)):
            privatizer.backward(F.cross_entropy(model(rows), labels, reduction="none"))
        privatizer.release()
        optimizers[1].step()

    for _ in range(WARM_UP):
        plain()
        private()
    return plain, private


def measure(name: str, repeats: int) -> FixedCost:
    """Measure one model."""
    plain, private = steps(name)
    times: dict[Step, list[float]] = {plain: [], private: []}
    with patch.object(LoopCheck, "_is_due", lambda *_: False):
        for _ in range(repeats):
            for step, found in times.items():
                start = time.process_time()
                step()
                found.append(1e6 * (time.process_time() - start))
        profile = cProfile.Profile()
        profile.enable()
        for _ in range(PROFILED):
            private()
        profile.disable()
    calls = pstats.Stats(profile).total_calls / PROFILED  # type: ignore[attr-defined]
    best = {step: min(found) for step, found in times.items()}
    return FixedCost(
        name=name,
        calls=calls,
        plain_us=best[plain],
        private_us=best[private],
        ratio=best[private] / best[plain],
    )


def table(costs: list[FixedCost]) -> str:
    lines = ["| model | calls | plain µs | private µs | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {c.name} | {c.calls:,.0f} | {c.plain_us:,.0f} | {c.private_us:,.0f} | ×{c.ratio:.2f} |"
        for c in costs
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Counts calls and processor time of private steps.")
    parser.add_argument("--models", default=",".join(MODELS), help="comma-separated names")
    parser.add_argument("--repeats", type=int, default=200, help="the best of so many steps counts")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    costs = [measure(name, options.repeats) for name in options.models.split(",")]
    print(json.dumps({"models": [asdict(cost) for cost in costs]}) if options.json else table(costs))


if __name__ == "__main__":
    main()

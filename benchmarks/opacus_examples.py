"""The examples of Opacus, a step of each: plain, private, and with Opacus where it is installed.

    python -m benchmarks.opacus_examples [NAME ...]            a later step
    python -m benchmarks.opacus_examples --first [NAME ...]    the first five steps together, the median of four runs

Milliseconds of one thread, contenders alternating: the best of at least 5 steps by the wall clock; the first steps by
processor time, so that other processes matter little. Opacus takes
per-sample gradients by hooks, as its examples do; torch's LSTM is refused there, so it runs its own `DPLSTM`.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg

FOLDER = Path(__file__).parents[1] / "examples" / "opacus"
BATCHES = {"mnist": 64, "imdb": 64, "char_lstm": 800, "cifar10": 512, "dcgan": 16}
"""Those of the examples; smaller for CIFAR-10 (2000) and DCGAN (64), to fit into the memory of a laptop."""

Step = Callable[[], None]
Losses = Callable[[nn.Module, Any], Tensor]


def example(name: str, kind: str = "private") -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(f"{kind}_{name}", FOLDER / kind / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parts(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Losses]:
    """Its model, one batch of its records, and a loss for each of them."""
    torch.manual_seed(0)
    module = example(name)
    records = module.made_up(BATCHES[name])
    if name == "dcgan":
        generator = module.Generator(128)
        return (
            qg.fix(module.Discriminator(128)),
            records.tensors,
            lambda model, rows: module.discriminator_losses(model, generator, rows[0]),
        )
    batch = records.tensors if isinstance(records, TensorDataset) else module.padded(records)
    return module.Net(), batch, lambda model, rows: F.cross_entropy(model(rows[0]), rows[1], reduction="none")


def plain(name: str) -> Step:
    model, batch, losses = parts(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        losses(model, batch).mean().backward()
        optimizer.step()

    return step


def ours(name: str) -> Step:
    model, batch, losses = parts(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = qg.PoissonBatches(TensorDataset(*batch), rate=1.0, steps=10_000)
    private, drawn = qg.Privatizer(model, qg.methods.dp_sgd(clip=1.0).with_noise(1.0), batches), iter(batches)

    def step() -> None:
        for rows in next(drawn).split(len(batch[0])):
            private.backward(losses(model, rows))
        private.release()
        optimizer.step()

    return step


def opacus(name: str) -> Step:
    from opacus import GradSampleModule
    from opacus.layers import DPLSTM
    from opacus.optimizers import DPOptimizer

    model, batch, losses = parts(name)
    if name == "char_lstm":
        model.lstm = DPLSTM(64, 128, batch_first=True)
    for module in model.modules():
        if isinstance(module, nn.LeakyReLU):
            module.inplace = False  # hooks of Opacus do not allow it
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(batch[0]),
    )

    def step() -> None:
        optimizer.zero_grad()
        losses(wrapped, batch).mean().backward()
        optimizer.step()

    return step


def best(steps: dict[str, Step], seconds: float = 20.0) -> dict[str, float]:
    """Milliseconds of each contender's fastest step, after three that are not counted."""
    times: dict[str, list[float]] = {who: [] for who in steps}
    start = time.perf_counter()
    while len(next(iter(times.values()))) < 8 or (
        time.perf_counter() - start < seconds and len(next(iter(times.values()))) < 40
    ):
        for who, step in steps.items():
            before = time.perf_counter()
            step()
            times[who].append(1e3 * (time.perf_counter() - before))
    return {who: min(found[3:]) for who, found in times.items()}


def first_steps(make: Mapping[str, Callable[[], Step]], runs: int = 4, steps: int = 5) -> dict[str, float]:
    """Processor milliseconds of each contender's first steps together, in runs that begin anew and alternate."""
    times: dict[str, list[float]] = {who: [] for who in make}
    for _ in range(runs):
        for who, new in make.items():
            step = new()
            before = time.process_time()
            for _ in range(steps):
                step()
            times[who].append(1e3 * (time.process_time() - before))
    return {who: statistics.median(found[1:]) for who, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the examples of Opacus.")
    parser.add_argument("names", nargs="*", default=list(BATCHES))
    parser.add_argument("--first", action="store_true", help="the first five steps instead of a later one")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    contenders = {"plain": plain, "ours": ours} | (
        {"opacus": opacus} if importlib.util.find_spec("opacus") else {}
    )
    print("| example | batch | " + " | ".join(contenders) + " |\n|" + "---|" * (2 + len(contenders)))
    for name in options.names:
        made = {who: partial(make, name) for who, make in contenders.items()}
        found = first_steps(made) if options.first else best({who: new() for who, new in made.items()})
        figures = " | ".join(f"{ms:.1f}" for ms in found.values())
        print(f"| {name} | {BATCHES[name]} | {figures} |", flush=True)


if __name__ == "__main__":
    main()

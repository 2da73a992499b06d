"""What several ranks send and how much faster they are: ResNet20 on gloo, one thread a process.

    python -m benchmarks.distributed            bytes per step and method, and step times for 1 and 2 processes
    python -m benchmarks.distributed --json     the same for scripts

Times are the slowest rank's, at one global batch. Efficiency takes the best steps, which other work on the machine
disturbs least; work efficiency takes processor time, which leaves out waiting. The control is the same step in two
processes that do not talk to each other: what the machine itself loses when its cores are all busy.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.distributed import Reducer
from quietgrad.lab.models import build

CLASSES, SHAPE, PUBLIC = 10, (3, 32, 32), 64
STEPS = 100
"""Steps of the plan; a benchmark takes fewer."""

Rows = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Times:
    """Seconds of a step: median and best by the wall clock, and of the processor."""

    wall: float
    best: float
    work: float


def public_losses(model: nn.Module) -> Tensor:
    x = torch.randn(PUBLIC, *SHAPE, generator=torch.Generator().manual_seed(3))
    return F.cross_entropy(model(x), torch.randint(CLASSES, (PUBLIC,)), reduction="none")


Build = Callable[[nn.Module, qg.PoissonBatches], qg.Mechanism]
FREEZE = qg.methods.random_freeze(freeze=0.9)
METHODS: dict[str, Build] = {
    "dp_sgd": lambda *_: qg.methods.dp_sgd(),
    "gep (k=50)": lambda *_: qg.methods.gep(public_losses, rank=50),
    "biased_gep (k=50)": lambda *_: qg.methods.biased_gep(public_losses, rank=50),
    "rgp (r=4)": lambda *_: qg.methods.rgp(rank=4),
    "pdp_sgd (k=50)": lambda *_: qg.methods.pdp_sgd(public_losses, rank=50),
    "random_freeze (90%)": lambda *_: FREEZE,
    "random_k (10%)": lambda *_: qg.methods.random_k(keep=0.1),
    "top_groups (90%)": lambda *_: qg.methods.top_groups(freeze=0.9),
    "gep @ freeze (90%)": lambda *_: (
        qg.methods.gep(public_losses, rank=50) @ FREEZE.releases[0].representation
    ),
    "gip (10%)": lambda model, batches: qg.methods.gip(model, batches, theta=0.0),
}
"""Each method in a setting of its paper's kind; how many numbers are sent depends on nothing else."""


class Run:
    """A private run on made-up images whose every step draws all of them."""

    def __init__(self, name: str, records: int, reducer: Reducer) -> None:
        torch.manual_seed(0)
        self.model = build("resnet20", SHAPE, CLASSES)
        data = TensorDataset(torch.randn(records, *SHAPE), torch.randint(CLASSES, (records,)))
        self.batches = qg.PoissonBatches(data, rate=1.0, steps=STEPS)
        mechanism = METHODS[name](self.model, self.batches).with_noise(1.0)
        self.private = qg.Privatizer(self.model, mechanism, self.batches, reducer=reducer)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self._drawn = iter(self.batches)

    def step(self) -> None:
        for x, y in next(self._drawn).split(4096):
            self.private.backward(F.cross_entropy(self.model(x), y, reduction="none"))
        self.private.release()
        self.optimizer.step()


def count_bytes() -> dict[str, float]:
    """Bytes that one rank puts into the group in a step of each method."""
    reducer = qg.distributed.AllReduce()
    found = {}
    for name in METHODS:
        before = reducer.bytes_reduced
        Run(name, 4, reducer).step()
        found[name] = float(reducer.bytes_reduced - before)
    return found


def time_together(records: int, steps: int) -> Times:
    """Steps in which all ranks share `records`."""
    return _timed(Run("dp_sgd", records, qg.distributed.AllReduce()).step, steps)


def time_apart(records: int, steps: int) -> Times:
    """Steps of `records`, beside others that run the same."""
    return _timed(Run("dp_sgd", records, qg.distributed.SingleProcess()).step, steps)


def _timed(step: Callable[[], None], steps: int) -> Times:
    for _ in range(3):
        step()
    dist.barrier()
    walls, works = [], []
    for _ in range(steps):
        wall, work = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        works.append(time.process_time() - work)
    return Times(wall=statistics.median(walls), best=min(walls), work=statistics.median(works))


def launch(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """The function on every rank of a gloo group, one thread each."""
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_enter, args=(rank, world, folder, results, function, args))
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit("a rank failed; see above")
        return [results.get() for _ in ranks]


def _enter(
    rank: int, world: int, folder: str, results: Any, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    file = Path(folder, "rendezvous").as_uri()
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=world)
    results.put(function(*args))
    dist.destroy_process_group()


def sent(world: int) -> Rows:
    """Bytes per step and method."""
    found: dict[str, float] = launch(world, count_bytes)[0]
    return {name: {"bytes": count, "of_dp_sgd": count / found["dp_sgd"]} for name, count in found.items()}


def timed(records: int, steps: int) -> Rows:
    """Steps of 1 and 2 ranks at the same global batch, and of 2 processes that do not talk; efficiency is t₁/(2·t₂)."""
    measured = {
        "1 process": _slowest(launch(1, time_together, records, steps)),
        "2 processes": _slowest(launch(2, time_together, records, steps)),
        "2 apart (control)": _slowest(launch(2, time_apart, records // 2, steps)),
    }
    one = measured["1 process"]
    efficiency = {
        name: {
            "efficiency": one["best"] / (2 * row["best"]),
            "work_efficiency": one["work"] / (2 * row["work"]),
        }
        for name, row in measured.items()
        if name != "1 process"
    }
    return {name: {**row, **efficiency.get(name, {})} for name, row in measured.items()}


def _slowest(ranks: list[Times]) -> dict[str, float]:
    return {field: max(getattr(rank, field) for rank in ranks) for field in ("wall", "best", "work")}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--batch", type=int, default=128, help="records of a step, over all ranks")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--only", choices=("bytes", "time"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Rows] = {}
    if args.only != "time":
        result["bytes"] = sent(world=2)
    if args.only != "bytes":
        result["time"] = timed(args.batch, args.steps)
    print(json.dumps(result, indent=2) if args.json else _table(result))


def _table(result: dict[str, Rows]) -> str:
    return "\n\n".join("\n".join(_lines(rows)) for rows in result.values())


def _lines(rows: Rows) -> list[str]:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    head = " ".join([f"{'':22}", *(f"{column:>15}" for column in columns)])
    return [
        head,
        *(" ".join([f"{name:22}", *(_cell(row.get(c)) for c in columns)]) for name, row in rows.items()),
    ]


def _cell(value: float | None) -> str:
    return " " * 15 if value is None else f"{value:15,.4g}" if value < 1000 else f"{value:15,.0f}"


if __name__ == "__main__":
    main()

"""What several ranks send and how much faster they are: ResNet20 on gloo, one thread a process.

    python -m benchmarks.distributed            bytes per step and method, and step times for 1 and 2 processes
    python -m benchmarks.distributed --json     the same for scripts

Times are medians of the slowest rank's steps at one global batch. The control is the same step in two processes that do
not talk to each other: what the machine itself loses when its cores are all busy.
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
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.lab.models import build
from quietgrad.mechanism import Mechanism
from quietgrad.reduction import Reducer

CLASSES, SHAPE, PUBLIC = 10, (3, 32, 32), 64
STEPS = 100
"""Steps of the plan; a benchmark takes fewer."""

Rows = dict[str, dict[str, float]]


def public_losses(model: nn.Module) -> Tensor:
    x = torch.randn(PUBLIC, *SHAPE, generator=torch.Generator().manual_seed(3))
    return F.cross_entropy(model(x), torch.randint(CLASSES, (PUBLIC,)), reduction="none")


Build = Callable[[nn.Module, qg.PoissonBatches], Mechanism]
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
    "gip (10%)": lambda model, batches: qg.methods.gip(model, batches, epsilon=8.0, delta=1e-5),
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


def time_together(records: int, steps: int) -> float:
    """Seconds of a step in which all ranks share `records`."""
    return _median(Run("dp_sgd", records, qg.distributed.AllReduce()).step, steps)


def time_apart(records: int, steps: int) -> float:
    """Seconds of a step of `records`, beside others that run the same."""
    return _median(Run("dp_sgd", records, qg.distributed.SingleProcess()).step, steps)


def _median(step: Callable[[], None], steps: int) -> float:
    for _ in range(3):
        step()
    dist.barrier()
    times = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


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


def timed(records: int, steps: int) -> dict[str, float]:
    """Seconds per step of 1 and 2 ranks at the same global batch, and of 2 that do not talk."""
    one = max(launch(1, time_together, records, steps))
    two = max(launch(2, time_together, records, steps))
    apart = max(launch(2, time_apart, records // 2, steps))
    return {
        "batch": records,
        "one_process": one,
        "two_processes": two,
        "efficiency": one / (2 * two),
        "control_two_apart": apart,
        "efficiency_of_control": one / (2 * apart),
    }


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
    result: dict[str, Any] = {}
    if args.only != "time":
        result["bytes"] = sent(world=2)
    if args.only != "bytes":
        result["time"] = timed(args.batch, args.steps)
    print(json.dumps(result, indent=2) if args.json else _table(result))


def _table(result: dict[str, Any]) -> str:
    lines = []
    if "bytes" in result:
        lines += [f"{'method':22} {'bytes a step':>14} {'of DP-SGD':>10}"]
        lines += [
            f"{n:22} {row['bytes']:14,.0f} {row['of_dp_sgd']:10.1%}" for n, row in result["bytes"].items()
        ]
    if "time" in result:
        lines += [f"{name:22} {value:14.4g}" for name, value in result["time"].items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()

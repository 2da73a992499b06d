"""Time and memory of an RGP step on a BERT-type encoder: 6 layers, width 384, 64 tokens, batch 32.

    python -m benchmarks.low_rank_step [--rank 8] [--steps 7] [--json FILE]

Every contender runs in a process of its own. Times are medians of single steps, taken in turns with plain SGD steps in
the same process; memory is the peak above what the process held before its first step (model and data).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.memory import high_water, resident
from quietgrad._capture.recorder import Recorder
from quietgrad._mechanism.clipping import clip_weights
from quietgrad.lab.models import build

BATCH, TOKENS, WIDTH, DEPTH, HEADS, VOCABULARY, CLASSES = 32, 64, 384, 6, 12, 30_522, 2
CONTENDERS = ("plain", "rgp", "rgp left", "rgp_random", "dp_sgd", "dp_sgd formed")
Step = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A contender's median step, the plain step's in the same process, and its peak memory."""

    name: str
    seconds: float
    plain_seconds: float
    megabytes: float


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return build("bert", (TOKENS,), CLASSES, vocabulary=VOCABULARY, width=WIDTH, depth=DEPTH, heads=HEADS)


def records() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (BATCH, TOKENS), generator=rng)
    return ids, torch.randint(CLASSES, (BATCH,), generator=rng)


def plain(model: nn.Module, ids: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(ids), labels).backward()
        optimizer.step()

    return step


def private(model: nn.Module, ids: Tensor, labels: Tensor, mechanism: qg.Mechanism) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = qg.PoissonBatches(TensorDataset(ids, labels), rate=1.0, steps=1000)
    privatizer = qg.Privatizer(model, mechanism.with_noise(1.0), batches)
    drawn = iter(batches)

    def step() -> None:
        ((x, y),) = next(drawn).split(BATCH)
        privatizer.backward(F.cross_entropy(model(x), y, reduction="none"))
        privatizer.release()
        optimizer.step()

    return step


def formed(model: nn.Module, ids: Tensor, labels: Tensor) -> Step:
    """DP-SGD as in its first implementations: every per-sample gradient in memory at once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    recorder = Recorder(model)
    recorder.attach()

    def step() -> None:
        rows = recorder.collect(F.cross_entropy(model(ids), labels, reduction="none")).dense()
        norms = sum(block.flatten(1).square().sum(1) for block in rows.values())
        assert isinstance(norms, Tensor)
        weights = clip_weights(norms.double(), 1.0).float()
        for name, parameter in recorder.parameters.items():
            total = (weights @ rows[name].flatten(1)).view_as(parameter)
            parameter.grad = (total + torch.randn_like(total)) / BATCH
        optimizer.step()

    return step


def contender(name: str, rank: int) -> Step:
    model, (ids, labels) = encoder(), records()
    if name == "plain":
        return plain(model, ids, labels)
    if name == "dp_sgd formed":
        return formed(model, ids, labels)
    mechanisms: dict[str, Callable[[], qg.Mechanism]] = {
        "dp_sgd": lambda: qg.methods.dp_sgd(),
        "rgp": lambda: qg.methods.rgp(rank=rank),
        "rgp left": lambda: qg.methods.rgp(rank=rank, release="left"),
        "rgp_random": lambda: qg.methods.rgp_random(rank=rank),
    }
    return private(model, ids, labels, mechanisms[name]())


def measure(name: str, rank: int, steps: int) -> Measured:
    """First the memory of two steps alone, then times in turns with plain steps."""
    step = contender(name, rank)
    ctypes.CDLL(None).malloc_trim(0)
    before = resident()
    step()
    step()
    memory = (high_water() - before) / 2**20
    reference = plain(encoder(), *records())
    times: dict[Step, list[float]] = {step: [], reference: []}
    for _ in range(steps + 1):
        for one in times:
            started = time.perf_counter()
            one()
            times[one].append(time.perf_counter() - started)
    own, other = (statistics.median(found[1:]) for found in times.values())
    return Measured(name=name, seconds=own, plain_seconds=other, megabytes=memory)


def in_own_process(name: str, rank: int, steps: int) -> Measured:
    command = [sys.executable, "-m", "benchmarks.low_rank_step", "--one", name, "--rank", str(rank)]
    output = subprocess.run(
        [*command, "--steps", str(steps)], check=True, capture_output=True, text=True
    ).stdout
    return Measured(**json.loads(output.splitlines()[-1]))


def show(found: list[Measured]) -> None:
    """The table; memory as a part of what formed gradients take."""
    whole = next(one.megabytes for one in found if one.name == "dp_sgd formed")
    print(f"{'method':16} {'s/step':>8} {'÷ plain':>8} {'peak MB':>8} {'formed ÷ it':>12}")
    for one in found:
        ratio = one.seconds / one.plain_seconds
        print(
            f"{one.name:16} {one.seconds:8.3f} {ratio:8.2f} {one.megabytes:8.0f} {whole / one.megabytes:12.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--one", choices=CONTENDERS, help="measure one contender in this process")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(asdict(measure(options.one, options.rank, options.steps))))
        return
    found = [in_own_process(name, options.rank, options.steps) for name in CONTENDERS]
    show(found)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1))


if __name__ == "__main__":
    main()

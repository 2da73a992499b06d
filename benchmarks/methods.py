"""Time and peak memory of one step of every method, against plain SGD and DP-SGD.

    python -m benchmarks.methods [--methods gep dp_sgd] [--json FILE]

ResNet20, 256 private and 256 public samples, rank 200 in three groups (GEP's official code: 10.4 s and 2.5 GB a step).
Each method runs in a process of its own. "× plain" compares with the plain SGD cost of as many samples as the method
runs through the model (private, plus public where it uses them); memory is the peak above the idle process. "encoded"
is how many numbers are summed, noised and all-reduced; the freeze rows keep 0.3 of the coordinates.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks.memory import high_water
from quietgrad._mechanism.post import Inside, ProjectOnto
from quietgrad._representations.base import PublicLosses
from quietgrad._representations.compose import ComposedCodec
from quietgrad._representations.subspace.subspace import SubspaceCodec
from quietgrad.lab.models import build
from quietgrad.public_losses import random_label_losses

PRIVATE, PUBLIC, CLASSES, SHAPE = 256, 256, 10, (3, 32, 32)
MICRO_BATCH = 64
"""Rows that go through the model at once, private and public: activations of 256 would be the peak otherwise."""
PUBLIC_CHUNK = 48
"""Fewer public rows at once: their formed gradients are kept beside the next chunk's activations."""
STEPS = 5
FREEZE = 0.7
"""Part of the coordinates that the freeze methods leave out: everything of theirs should shrink to 0.3."""

METHODS: dict[str, Callable[[PublicLosses], qg.Mechanism]] = {
    "dp_sgd": lambda _public: qg.methods.dp_sgd(clip=1.0),
    "gep": lambda public: qg.methods.gep(public, rank=200, clip=1.0, residual_clip=0.5, groups=3),
    "biased_gep": lambda public: qg.methods.biased_gep(public, rank=200, clip=1.0, groups=3),
    "pdp_sgd": lambda public: qg.methods.pdp_sgd(public, rank=50, clip=1.0),
    "rpdp_sgd": lambda _public: qg.methods.rpdp_sgd(rank=50, clip=1.0, refresh_every=100),
    "rgp": lambda _public: qg.methods.rgp(rank=8, clip=1.0),
    "rgp_random": lambda _public: qg.methods.rgp_random(rank=8, clip=1.0),
    "dp_power_sgd": lambda _public: qg.methods.dp_power_sgd(rank=8, clip=1.0),
    "random_freeze": lambda _public: qg.methods.random_freeze(freeze=FREEZE),
    "top_groups": lambda _public: qg.methods.top_groups(freeze=FREEZE),
    "preconditioned": lambda public: qg.methods.preconditioned(public, clip=1.0),
    "gep_freeze": lambda public: METHODS["gep"](public) @ qg.RandomMask(FREEZE),
    "pdp_freeze": lambda public: METHODS["pdp_sgd"](public) @ qg.RandomMask(FREEZE),
    "rgp_freeze": lambda _public: qg.methods.random_freeze(freeze=FREEZE) @ qg.LowRank(rank=8),
}
WITH_PUBLIC = {"gep", "biased_gep", "pdp_sgd", "gep_freeze", "pdp_freeze"}
"""Methods that run the public samples through the model in every step."""


def plain_step(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Ordinary SGD on all rows, in micro-batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        for rows, labels in zip(x.split(MICRO_BATCH), y.split(MICRO_BATCH), strict=True):
            (F.cross_entropy(model(rows), labels, reduction="sum") / len(x)).backward()
        optimizer.step()

    return step


def private_step(
    model: nn.Module, x: Tensor, y: Tensor, mechanism: qg.Mechanism
) -> tuple[qg.Privatizer, Callable[[], None]]:
    """The whole private step; rate 1 draws every row each time."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = qg.PoissonBatches(TensorDataset(x, y), rate=1.0, steps=1_000)
    private = qg.Privatizer(model, mechanism.with_noise(1.0), batches)
    drawn = iter(batches)

    def step() -> None:
        for rows, labels in next(drawn).split(MICRO_BATCH):
            private.backward(F.cross_entropy(model(rows), labels, reduction="none"))
        private.release()
        optimizer.step()

    return private, step


def sizes(mechanism: qg.Mechanism, public: qg.Public) -> dict[str, float]:
    """Coordinates of the encoded sums (what is summed, noised and all-reduced) and megabytes of the basis."""
    codecs = [public.codec(release.representation) for release in mechanism.releases]
    encoded = sum(shape.numel() for codec in codecs for shape in codec.space.values())
    inner = [codec.outer if isinstance(codec, ComposedCodec) else codec for codec in codecs]
    for post in mechanism.post:
        wrapped, view = (
            (post.post, public.inside(post.representation)) if isinstance(post, Inside) else (post, public)
        )
        if isinstance(wrapped, ProjectOnto):
            inner.append(view.codec(wrapped.subspace))
    bases = {id(codec): codec.basis for codec in inner if isinstance(codec, SubspaceCodec)}
    numbers = sum(group.rows.numel() for basis in bases.values() for group in basis.groups.values())
    return {"encoded": encoded, "basis_megabytes": 4 * numbers / 2**20}


def measure(name: str) -> dict[str, float]:
    """Seconds of a step (median) and peak megabytes above the idle process; run in a fresh process."""
    rng = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    samples = PRIVATE + PUBLIC if name == "plain_512" else PRIVATE
    x = torch.randn(samples, *SHAPE, generator=rng)
    y = torch.randint(CLASSES, (samples,), generator=rng)
    public = random_label_losses(torch.randn(PUBLIC, *SHAPE, generator=rng), CLASSES, chunk=PUBLIC_CHUNK)
    model = build("resnet20", SHAPE, CLASSES)
    idle = high_water()
    plain = name.startswith("plain")
    if plain:
        step, kept = plain_step(model, x, y), {"encoded": 0.0, "basis_megabytes": 0.0}
    else:
        mechanism = METHODS[name](public)
        private, step = private_step(model, x, y, mechanism)
        kept = sizes(mechanism, private.begin_step().public)
    step()  # measures the algorithms, allocates
    timed = [_seconds(step) for _ in range(STEPS)]
    wall, cpu = (statistics.median(times) for times in zip(*timed, strict=True))
    return {"seconds": wall, "cpu_seconds": cpu, "megabytes": (high_water() - idle) / 2**20, **kept}


def _seconds(step: Callable[[], None]) -> tuple[float, float]:
    """By the clock, and of the processor: the latter also means something on a busy machine."""
    started, cpu = time.perf_counter(), time.process_time()
    step()
    return time.perf_counter() - started, time.process_time() - cpu


def in_fresh_process(name: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.methods", "--measure", name],
        check=True,
        capture_output=True,
        text=True,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def compare(names: list[str]) -> list[dict[str, float | str]]:
    """Every method against the plain cost of the samples it uses."""
    plain = {False: in_fresh_process("plain_256"), True: in_fresh_process("plain_512")}
    rows: list[dict[str, float | str]] = [
        {"method": f"plain_{PRIVATE}", **plain[False], "times_plain": 1.0},
        {"method": f"plain_{PRIVATE + PUBLIC}", **plain[True], "times_plain": 1.0},
    ]
    for name in names:
        found = in_fresh_process(name)
        rows.append(
            {"method": name, **found, "times_plain": found["seconds"] / plain[name in WITH_PUBLIC]["seconds"]}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    rows = compare(arguments.methods)
    print(
        f"{'method':14} {'s/step':>8} {'CPU s':>8} {'× plain':>8} {'peak MB':>8} {'encoded':>9} {'basis MB':>9}"
    )
    for row in rows:
        print(
            f"{row['method']:14} {row['seconds']:8.3f} {row['cpu_seconds']:8.3f} {row['times_plain']:8.2f} "
            f"{row['megabytes']:8.0f} "
            f"{row['encoded']:9.0f} {row['basis_megabytes']:9.1f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()

"""Nanoseconds that noise takes for each coordinate, on one thread.

python -m benchmarks.noise [--json] [--repeats 30]
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch

import quietgrad as qg
from quietgrad._noise.aes import RandomWords
from quietgrad._noise.sources import EntropySource, HardenedSource
from quietgrad._sampling.coins import heads
from quietgrad.distributed import SingleProcess

SIZES = (10_000, 100_000, 1_000_000, 4_000_000)


@dataclass(frozen=True)
class Timing:
    """The fastest of the repeats, by the wall clock and by the thread's own time, which leaves other work out."""

    task: str
    coordinates: int
    wall_ns: float
    cpu_ns: float


def timed(task: str, coordinates: int, work: Callable[[], object], repeats: int) -> Timing:
    work()
    wall, cpu = [], []
    for _ in range(repeats):
        started, busy = time.perf_counter(), time.thread_time()
        work()
        wall.append(time.perf_counter() - started)
        cpu.append(time.thread_time() - busy)
    return Timing(task, coordinates, 1e9 * min(wall) / coordinates, 1e9 * min(cpu) / coordinates)


def release(dtype: torch.dtype, coordinates: int, source: qg.NoiseSource) -> Callable[[], object]:
    """Round the sum, draw, add, convert: all that a release does on one process."""
    total = qg.ClippedSum(blocks={"w": torch.randn(coordinates).to(dtype)}, sensitivity=1.0)
    draw = qg.NoiseDraw(std=1.0, divisor=100.0, source=source, reducer=SingleProcess(), step=0)
    return lambda: qg.Gaussian().release(total, draw, qg.NoiseState())


def timings(repeats: int) -> Iterator[Timing]:
    torch.set_num_threads(1)
    words, out = RandomWords(), np.empty(1 << 20, np.uint64)
    yield timed("AES-256 key stream, 8 bytes", len(out), lambda: words.fill(out), repeats)
    yield timed("coin for a record", 1 << 20, lambda: heads(1 << 20, 0.02, RandomWords()), repeats)
    source = EntropySource()
    for size in SIZES:
        yield timed("Gaussian integer", size, functools.partial(source.integers, size), repeats)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for size in SIZES:
            yield timed(f"release, {str(dtype)[6:]}", size, release(dtype, size, source), repeats)
    yield timed("release, hardened", 100_000, release(torch.float32, 100_000, HardenedSource()), 3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    found = list(timings(args.repeats))
    if args.json:
        print(json.dumps([asdict(each) for each in found], indent=1))
        return
    print(f"{'':<30}{'coordinates':>12}{'wall ns':>12}{'CPU ns':>12}")
    for each in found:
        print(f"{each.task:<30}{each.coordinates:>12}{each.wall_ns:>12.2f}{each.cpu_ns:>12.2f}")


if __name__ == "__main__":
    main()

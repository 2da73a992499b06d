"""How long the accountant takes, and what it finds.

python -m benchmarks.accountant [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from quietgrad.accounting import (
    GaussianEvent,
    JointEvent,
    Ledger,
    MallowsSelection,
    Phase,
    calibrate,
    epsilon,
    steps_within,
)

DELTA = 1e-5


@dataclass(frozen=True)
class Timing:
    task: str
    value: float
    seconds: float
    cpu_seconds: float
    limit: float | None = None


@dataclass(frozen=True)
class Flat:
    """The same Gaussian at every step."""

    noise: float = 1.0

    def event(self, step: int) -> GaussianEvent:
        return GaussianEvent(noise_multiplier=self.noise)

    def with_noise(self, noise_multiplier: float) -> Flat:
        return Flat(noise_multiplier)

    def before(self, batches: object) -> tuple[Phase, ...]:
        return ()

    def for_budget(self, batches: object, *, epsilon: float, delta: float) -> Flat:
        return self


@dataclass(frozen=True)
class Batches:
    rate: float
    steps: int


def flat(noise: float, rate: float, count: int) -> Phase:
    return Phase(event=GaussianEvent(noise_multiplier=noise), rate=rate, count=count)


def measure(task: str, work: Callable[[], float], limit: float | None = None) -> Timing:
    """The median of three runs; the CPU time shows what a busy machine hides."""
    runs = []
    for _ in range(3):
        wall, cpu = time.perf_counter(), time.process_time()
        value = work()
        runs.append((time.perf_counter() - wall, time.process_time() - cpu))
    return Timing(task, value, *sorted(runs)[1], limit)


def record_many(count: int, path: Path | None) -> float:
    """Seconds per recorded step, times 1e6."""
    event = GaussianEvent(noise_multiplier=1.0)
    ledger = Ledger(path, plan=[flat(1.0, 0.1, count)])
    start = time.perf_counter()
    for step in range(count):
        ledger.record(event, 0.1, step=step)
    microseconds = (time.perf_counter() - start) / count * 1e6
    ledger.close()
    return microseconds


def run() -> list[Timing]:
    selection = MallowsSelection(theta=3.08e-5, group_size=256, kept=26, groups=10_672)
    joint = JointEvent(gaussian=GaussianEvent(noise_multiplier=1.01 * 10.120), selections=(selection,))
    schedule = [flat(1.5 + i / 100, 1 / 60, 60) for i in range(50)]
    first = Batches(1 / 60, 3000)
    many = Batches(1e-3, 100_000)
    return [
        measure(
            "epsilon, flat: sigma 1.9765, q 1/60, T 3000",
            lambda: epsilon([flat(1.9765, 1 / 60, 3000)], DELTA),
        ),
        measure("epsilon, 50 phases", lambda: epsilon(schedule, DELTA), limit=5.0),
        measure(
            "epsilon, joint Mallows",
            lambda: epsilon([Phase(event=joint, rate=4096 / 45_000, count=875)], DELTA),
        ),
        measure(
            "noise for epsilon 2, flat",
            lambda: calibrate(Flat(), first, epsilon=2, delta=DELTA).noise,
            limit=1.5,
        ),
        measure(
            "noise for epsilon 8, flat",
            lambda: calibrate(Flat(), first, epsilon=8, delta=DELTA).noise,
            limit=1.5,
        ),
        measure(
            "noise for epsilon 2, 100,000 steps",
            lambda: calibrate(Flat(), many, epsilon=2, delta=DELTA).noise,
        ),
        measure("steps for epsilon 2", lambda: steps_within(Flat(1.9765), 1 / 60, epsilon=2, delta=DELTA)),
        measure("ledger in memory, us per step", lambda: record_many(20_000, None)),
        measure("ledger on disk, us per step", record_on_disk),
    ]


def record_on_disk() -> float:
    with tempfile.TemporaryDirectory() as folder:
        return record_many(500, Path(folder) / "ledger.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    timings = run()
    if options.json:
        print(json.dumps([asdict(timing) for timing in timings], indent=2))
        return
    for timing in timings:
        limit = "" if timing.limit is None else f"  (limit {timing.limit:g} s)"
        print(
            f"{timing.task:<46} {timing.value:>12.5g} {timing.seconds:>8.3f} s {timing.cpu_seconds:>8.3f} s CPU{limit}"
        )


if __name__ == "__main__":
    main()

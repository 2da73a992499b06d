"""Peak memory of one contender, alone in a process: `python -m benchmarks.memory MODEL CONTENDER`, in bytes."""

from __future__ import annotations

import sys
from pathlib import Path

import quietgrad as qg
from benchmarks import contenders
from benchmarks.models import SETTINGS
from benchmarks.more_models import MORE

STEPS = 4


def resident() -> int:
    """Bytes in use now."""
    return _status("VmRSS")


def high_water() -> int:
    """The most bytes ever in use. (getrusage would count the parent's, up to the moment this process was started.)"""
    return _status("VmHWM")


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak(name: str, contender: str) -> int:
    """How far the peak of a few steps lies above what the process held before it built anything."""
    setting = next(s for s in (*SETTINGS, *MORE) if s.name == name)
    # quietgrad imports its parts with its first public names. What they take is no memory of a step.
    assert all(map(callable, (qg.Privatizer, qg.PoissonBatches, qg.methods.dp_sgd)))
    before = resident()
    made = {"plain": contenders.plain, "quietgrad": contenders.quietgrad}
    step = made[contender](setting) if contender in made else contenders.opacus(setting, contender)
    for _ in range(STEPS):
        step()
    return high_water() - before


if __name__ == "__main__":
    print(peak(sys.argv[1], sys.argv[2]))

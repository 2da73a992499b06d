"""Peak memory of one contender, alone in a process: `python -m benchmarks.memory MODEL CONTENDER`, in bytes."""

from __future__ import annotations

import resource
import sys

from benchmarks import contenders
from benchmarks.models import SETTINGS

STEPS = 4


def resident() -> int:
    """Bytes in use now."""
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize()


def peak(name: str, contender: str) -> int:
    """How far the peak of a few steps lies above what the process held before it built anything."""
    setting = next(s for s in SETTINGS if s.name == name)
    before = resident()
    made = {"plain": contenders.plain, "quietgrad": contenders.quietgrad}
    step = made[contender](setting) if contender in made else contenders.opacus(setting, contender)
    for _ in range(STEPS):
        step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


if __name__ == "__main__":
    print(peak(sys.argv[1], sys.argv[2]))

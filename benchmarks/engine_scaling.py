"""How the cost of a private step grows with batch and width, next to the plain step's.

    python -m benchmarks.engine_scaling [--json] [--plot docs/engine_scaling.png]

Slopes are those of log(milliseconds) against log(size), fitted over the whole range.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import contenders
from benchmarks.engine import Clock, alternate, chosen_clock
from benchmarks.models import CLASSES, Setting, images, mlp
from quietgrad.lab.models import build

BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
WIDTHS = (128, 256, 512, 1024)


@dataclass(frozen=True)
class Growth:
    """Times of both contenders over a range of sizes, and their slopes."""

    over: str
    sizes: tuple[int, ...]
    plain_ms: tuple[float, ...]
    quietgrad_ms: tuple[float, ...]
    plain_slope: float
    quietgrad_slope: float


def measure(
    over: str, sizes: tuple[int, ...], setting: Callable[[int], Setting], repeats: int, clock: Clock
) -> Growth:
    """Both contenders at every size."""
    times = []
    for size in sizes:
        chosen = setting(size)
        steps = {"plain": contenders.plain(chosen), "quietgrad": contenders.quietgrad(chosen)}
        times.append(alternate(steps, repeats, clock))
    plain, private = (tuple(time[name] for time in times) for name in ("plain", "quietgrad"))
    return Growth(over, sizes, plain, private, slope(sizes, plain), slope(sizes, private))


def slope(sizes: tuple[int, ...], times: tuple[float, ...]) -> float:
    """Least squares in logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(time) for time in times]
    middle, level = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle) ** 2 for a in x)


def by_batch(batch: int) -> Setting:
    return Setting("mlp", lambda: mlp(1024), batch, images(784))


def by_images(batch: int) -> Setting:
    return Setting("tanh_cnn", lambda: build("tanh_cnn", (1, 28, 28), CLASSES), batch, images(1, 28, 28))


def by_width(width: int) -> Setting:
    return Setting("mlp", lambda: mlp(width), 512, images(784))


def plot(growths: list[Growth], path: Path) -> None:
    """One panel for each range."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(growths), figsize=(11, 3.4))
    for growth, axes in zip(growths, panels, strict=True):
        axes.loglog(
            growth.sizes,
            growth.plain_ms,
            "o-",
            color="#8a8a8a",
            label=f"plain, slope {growth.plain_slope:.2f}",
        )
        axes.loglog(
            growth.sizes,
            growth.quietgrad_ms,
            "o-",
            color="#3367a8",
            label=f"quietgrad, {growth.quietgrad_slope:.2f}",
        )
        axes.set_xticks(growth.sizes, [str(size) for size in growth.sizes])
        axes.minorticks_off()
        axes.tick_params(labelsize=8)
        axes.set_xlabel(growth.over)
        axes.set_ylabel("ms a step")
        axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Growth of a private step's cost.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--processor-time", action="store_true", help="as in benchmarks.engine")
    options = parser.parse_args()
    clock = chosen_clock(options.processor_time)
    growths = [
        measure("batch size, MLP", BATCHES, by_batch, options.repeats, clock),
        measure("batch size, tanh CNN", BATCHES, by_images, options.repeats, clock),
        measure("width, MLP", WIDTHS, by_width, options.repeats, clock),
    ]
    if options.plot:
        plot(growths, options.plot)
    if options.json:
        print(json.dumps([asdict(growth) for growth in growths]))
        return
    for growth in growths:
        print(f"{growth.over}: slope plain {growth.plain_slope:.3f}, quietgrad {growth.quietgrad_slope:.3f}")


if __name__ == "__main__":
    main()

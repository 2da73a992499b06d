"""How the cost of a private step grows with batch, width, depth, tokens and classes, next to the plain step's.

    python -m benchmarks.engine_scaling [--only tokens] [--json] [--plot docs/engine_scaling.png]

Slopes are those of log(milliseconds) against log(size), fitted over the whole range. The last range is the draw alone,
of 256 expected records of up to ten million, next to as many random numbers without a guarantee.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import nn

import quietgrad as qg
from benchmarks import contenders
from benchmarks.engine import Clock, alternate, chosen_clock
from benchmarks.models import CLASSES, Setting, Transformer, images, mlp, words
from quietgrad.lab.models import build

BATCHES = (32, 64, 128, 256, 512, 1024, 2048)
WIDTHS = (128, 256, 512, 1024)
DEPTHS = (1, 2, 4, 8, 16)
TOKENS = (16, 32, 64, 128, 256)
CLASS_COUNTS = (10, 100, 1_000, 10_000)
RECORDS = (10_000, 100_000, 1_000_000, 10_000_000)
DRAWN = 256


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


def by_depth(depth: int) -> Setting:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return Setting("deep", lambda: nn.Sequential(*layers, nn.Linear(256, CLASSES)), 256, images(256))


def by_tokens(tokens: int) -> Setting:
    return Setting("transformer", lambda: Transformer(1_000, tokens, 128, 1), 8, words(1_000, tokens))


def by_classes(classes: int) -> Setting:
    return Setting("head", lambda: nn.Linear(256, classes), 128, images(256))


def draws(repeats: int, clock: Clock) -> Growth:
    """Time of a draw over the number of records."""
    times = []
    for records in RECORDS:
        sampler = qg.PoissonSampler(records, rate=DRAWN / records, steps=contenders.MANY)
        steps: dict[str, contenders.Step] = {
            "plain": partial(np.random.default_rng().integers, records, size=DRAWN),
            "quietgrad": sampler.draw,
        }
        times.append(alternate(steps, repeats, clock))
    plain, private = (tuple(time[name] for time in times) for name in ("plain", "quietgrad"))
    return Growth("records, a draw", RECORDS, plain, private, slope(RECORDS, plain), slope(RECORDS, private))


def plot(growths: list[Growth], path: Path) -> None:
    """One panel for each range."""
    from matplotlib import pyplot

    rows = -(-len(growths) // 4)
    columns = -(-len(growths) // rows)
    figure, panels = pyplot.subplots(rows, columns, figsize=(3.7 * columns, 3.4 * rows), squeeze=False)
    for axes in panels.flat[len(growths) :]:
        axes.remove()
    for growth, axes in zip(growths, panels.flat, strict=False):
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
        axes.set_xticks(growth.sizes, [f"{size:g}" for size in growth.sizes])
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
    parser.add_argument("--only", help="ranges whose name holds this word")
    parser.add_argument("--processor-time", action="store_true", help="as in benchmarks.engine")
    options = parser.parse_args()
    clock = chosen_clock(options.processor_time)
    ranges: tuple[tuple[str, tuple[int, ...], Callable[[int], Setting]], ...] = (
        ("batch size, MLP", BATCHES, by_batch),
        ("batch size, tanh CNN", BATCHES, by_images),
        ("width, MLP", WIDTHS, by_width),
        ("depth, MLP", DEPTHS, by_depth),
        ("tokens, transformer", TOKENS, by_tokens),
        ("classes, linear", CLASS_COUNTS, by_classes),
    )
    growths = [measure(*each, options.repeats, clock) for each in ranges if (options.only or "") in each[0]]
    if (options.only or "") in "records, a draw":
        growths.append(draws(options.repeats, clock))
    if options.plot:
        plot(growths, options.plot)
    if options.json:
        print(json.dumps([asdict(growth) for growth in growths]))
        return
    for growth in growths:
        print(f"{growth.over}: slope plain {growth.plain_slope:.3f}, quietgrad {growth.quietgrad_slope:.3f}")
        for size, plain, private in zip(growth.sizes, growth.plain_ms, growth.quietgrad_ms, strict=True):
            print(f"{size:>12,}{plain:10.2f} ms{private:10.2f} ms")


if __name__ == "__main__":
    main()

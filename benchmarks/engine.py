"""A private step against an ordinary one and against every mode of Opacus, on five models and on more.

    python -m benchmarks.engine            a table
    python -m benchmarks.engine --all      LSTM, GRU, nn.TransformerEncoder, BERT, ViT, T5, DLRM, GPT-2 and LoRA too
    python -m benchmarks.engine --json     {"models": [{"name", "plain_ms", "quietgrad_ms", "ratio", ...}, ...]}
    python -m benchmarks.engine --plot docs/engine.png

The contenders of a model alternate in one process and the best of several repeats counts; peak memory is taken in a
process of its own for each. On a machine that is busy with other work `--processor-time` counts the processor time of a
single-threaded run (all of the process's threads, the one that draws noise included) instead of the wall clock's.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from benchmarks import contenders
from benchmarks.models import SETTINGS, Setting
from benchmarks.more_models import MORE

Clock = Callable[[], float]

TOO_SLOW = 8.0
"""A contender this many times slower than the plain step is timed only twice."""

TOO_LARGE = 4 << 30
"""Bytes of formed gradients (all of them at once, which is what Opacus' default does) above which a mode is not run."""


@dataclass
class Result:
    """One model's figures; times are milliseconds a step."""

    name: str
    plain_ms: float
    quietgrad_ms: float
    ratio: float
    opacus_best_ms: float | None
    opacus_best_mode: str | None
    memory_ratio: float | None
    parameters: int
    batch: int
    first_batch: float = math.nan
    """The first private step, in plain steps; runtime checks and trials are in it."""
    median_ratio: float = math.nan
    """Of the ratios of single steps, taken one after the other."""
    quartiles: tuple[float, ...] = ()
    """The spread of these ratios."""
    opacus_ms: dict[str, float | None] = field(default_factory=dict)


def measure(
    setting: Setting,
    repeats: int,
    modes: tuple[str, ...],
    with_memory: bool,
    clock: Clock = time.perf_counter,
) -> Result:
    """All contenders on one model."""
    model = setting.model()
    parameters = sum(p.numel() for p in contenders.trained(model))
    steps = {"plain": contenders.plain(setting), "quietgrad": contenders.quietgrad(setting)}
    # Opacus' hooks hold every gradient twice on the way; the others once.
    affordable = [mode for mode in modes if mode == "ghost" or 2 * setting.batch * parameters * 4 < TOO_LARGE]
    theirs = {mode: step for mode in affordable if (step := opacus_step(setting, mode)) is not None}
    steps |= theirs
    steps["plain"]()  # torch's own first step is not quietgrad's
    start = clock()
    steps["quietgrad"]()
    first = 1e3 * (clock() - start)
    times = take_turns(steps, repeats, clock)
    best = {name: min(found) for name, found in times.items()}
    ratios = [private / plain for private, plain in zip(times["quietgrad"], times["plain"], strict=False)]
    print(f"{setting.name}: {best}", file=sys.stderr)
    opacus = {mode: best.get(mode) for mode in modes}
    winner = min(theirs, key=lambda mode: best[mode], default=None)
    return Result(
        name=setting.name,
        plain_ms=best["plain"],
        quietgrad_ms=best["quietgrad"],
        ratio=best["quietgrad"] / best["plain"],
        opacus_best_ms=None if winner is None else best[winner],
        opacus_best_mode=winner,
        memory_ratio=memory_ratio(setting.name) if with_memory else None,
        parameters=parameters,
        batch=setting.batch,
        first_batch=first / best["plain"],
        median_ratio=statistics.median(ratios),
        quartiles=tuple(statistics.quantiles(ratios, n=4)[::2]) if len(ratios) > 1 else (),
        opacus_ms=opacus,
    )


def opacus_step(setting: Setting, mode: str) -> contenders.Step | None:
    """Opacus' step after it ran once; None where it does not take the model in this mode, whatever it says of it."""
    try:
        step = contenders.opacus(setting, mode)
        step()
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        print(f"{setting.name}: Opacus ({mode}) does not run: {said[0][:120]}", file=sys.stderr)
        return None
    return step


def alternate(
    steps: dict[str, contenders.Step], repeats: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """The best time of each contender."""
    return {name: min(found) for name, found in take_turns(steps, repeats, clock).items()}


def take_turns(
    steps: dict[str, contenders.Step], repeats: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """All times of each contender, taken in turns so that what disturbs one disturbs all."""
    for step in steps.values():
        step()
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats):
        for name, step in steps.items():
            if turn >= 2 and min(times[name]) > TOO_SLOW * min(times["plain"]):
                continue
            start = clock()
            step()
            times[name].append(1e3 * (clock() - start))
    return times


def chosen_clock(processor_time: bool) -> Clock:
    """The wall clock, or the process's own time in a run with one thread."""
    if not processor_time:
        return time.perf_counter
    torch.set_num_threads(1)
    return time.process_time


def memory_ratio(name: str) -> float:
    """Peak memory of quietgrad's steps over plain SGD's, beyond what both hold before the first step."""
    peaks = [_peak(name, contender) for contender in ("quietgrad", "plain")]
    return peaks[0] / peaks[1]


def _peak(name: str, contender: str) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", name, contender]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def table(results: list[Result]) -> str:
    """The figures as a table."""
    lines = [
        "| model (parameters, batch) | plain ms | private ms | ratio | median (quartiles) | Opacus ms (mode) | faster "
        "| memory | first |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        theirs = "–" if r.opacus_best_ms is None else f"{r.opacus_best_ms:.1f} ({r.opacus_best_mode})"
        faster = "–" if r.opacus_best_ms is None else f"×{r.opacus_best_ms / r.quietgrad_ms:.2f}"
        spread = "–".join(f"{ratio:.2f}" for ratio in r.quartiles)
        room = "–" if r.memory_ratio is None else f"×{r.memory_ratio:.2f}"
        lines.append(
            f"| {r.name} ({r.parameters:,}, {r.batch}) | {r.plain_ms:.1f} | {r.quietgrad_ms:.1f} | ×{r.ratio:.2f} "
            f"| ×{r.median_ratio:.2f} ({spread}) "
            f"| {theirs} | {faster} | {room} | ×{r.first_batch:.1f} |"
        )
    lines.append(f"\ngeometric mean of the ratios: ×{geometric_mean([r.ratio for r in results]):.3f}")
    return "\n".join(lines)


def plot(results: list[Result], path: Path) -> None:
    """Bars of cost relative to the plain step."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    for place, r in enumerate(results):
        axes.bar(place - 0.2, r.ratio, 0.36, color="#3367a8", label="quietgrad" if place == 0 else None)
        if r.opacus_best_ms is not None:
            height = r.opacus_best_ms / r.plain_ms
            axes.bar(
                place + 0.2, height, 0.36, color="#c9c9c9", label="Opacus, best mode" if place == 0 else None
            )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(results)), [r.name for r in results])
    axes.set_ylabel("cost of a private step\n(plain SGD = 1)")
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Times private steps against plain ones.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--models", help="comma-separated names; the five without it")
    parser.add_argument("--all", action="store_true", help="the five and the models beyond them")
    parser.add_argument("--repeats", type=int, default=15, help="the best of so many steps counts")
    parser.add_argument("--no-opacus", action="store_true", help="leave Opacus out")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out")
    parser.add_argument("--plot", type=Path, help="write a plot to this file")
    parser.add_argument(
        "--processor-time", action="store_true", help="processor time of one thread, not wall time"
    )
    options = parser.parse_args(arguments)
    clock = chosen_clock(options.processor_time)
    known = {s.name: s for s in (*SETTINGS, *MORE)}
    names = options.models.split(",") if options.models else [s.name for s in SETTINGS]
    if set(names) - known.keys():
        parser.error(f"unknown models {sorted(set(names) - known.keys())}; known: {list(known)}")
    modes = () if options.no_opacus else contenders.OPACUS_MODES
    chosen = list(known.values()) if options.all else [known[name] for name in names]
    results = [measure(s, options.repeats, modes, not options.no_memory, clock) for s in chosen]
    if options.plot:
        plot(results, options.plot)
    print(json.dumps({"models": [asdict(r) for r in results]}) if options.json else table(results))


if __name__ == "__main__":
    main()

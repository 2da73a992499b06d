"""Private fine-tuning measured: heads on frozen features, adapters, whole models, a language model.

Everything is resumable: features lie in a cache by chunks, every finished run is a line of the results file and is not
run again.

    python -m benchmarks.fine_tuning features sst2 --cache CACHE            # MiniLM, 4,000 sentences a chunk
    python -m benchmarks.fine_tuning features cifar10 --cache CACHE         # EfficientNet-Lite0, 2,500 images a chunk
    python -m benchmarks.fine_tuning head sst2 --cache CACHE --epsilons 1,3,8 --seeds 2
    python -m benchmarks.fine_tuning search lora --epsilons 8               # learning rates, on held-out sentences
    python -m benchmarks.fine_tuning tune lora --epsilons 1,3,8 --seeds 2   # with the search's rate
    python -m benchmarks.fine_tuning language --epsilons 8,0 --steps 8 --batch 32
    python -m benchmarks.fine_tuning scale                                  # a step of 135M parameters

ε = 0 stands for no privacy. $QUIETGRAD_DATA is where the data are; the weights are packages (docs/fine_tuning.md).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from benchmarks.fine_tuning import heads, language, scale, sst2
from benchmarks.fine_tuning.results import once


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["features", "head", "search", "tune", "language", "scale"])
    parser.add_argument("which", nargs="?", default="lora")
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--epsilons", default="1,3,8")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--records", type=int, default=48_000)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--searched", type=float, default=8.0, help="the ε whose search gives `tune` its rate"
    )
    given = parser.parse_args()
    run: dict[str, Callable[[argparse.Namespace], None]] = {
        "features": _features, "head": _heads, "search": _search, "tune": _tune, "language": _language,
        "scale": lambda _: _scale(),
    }  # fmt: skip
    run[given.what](given)


def _features(given: argparse.Namespace) -> None:
    given.cache.mkdir(parents=True, exist_ok=True)
    heads.features(given.which, given.cache, given.seconds)


def _heads(given: argparse.Namespace) -> None:
    task, cache, most = given.which, given.cache, given.records
    once(f"head {task}, non-private, {most} records", lambda: heads.head_without_noise(task, cache, most))
    for epsilon in _epsilons(given):
        for seed in range(given.seeds):
            name = f"head {task}, epsilon {epsilon:g}, run {seed}, {most} records"
            once(name, lambda epsilon=epsilon: heads.head(task, cache, epsilon, most))  # type: ignore[misc]


def _search(given: argparse.Namespace) -> None:
    for epsilon in _epsilons(given):
        for lr in (sst2.RATES if epsilon else sst2.PLAIN_RATES)[given.which]:
            _tuned(given, epsilon, lr, seed=0)


def _tune(given: argparse.Namespace) -> None:
    for epsilon in _epsilons(given):
        searched = given.searched if epsilon else 0.0
        lr = sst2.best_rate(given.which, searched, steps=given.steps, batch=given.batch)
        for seed in range(given.seeds):
            _tuned(given, epsilon, lr, seed)


def _tuned(given: argparse.Namespace, epsilon: float, lr: float, seed: int) -> None:
    plan = {"lr": lr, "steps": given.steps, "batch": given.batch, "seed": seed}
    once(sst2.name_of(given.which, epsilon, **plan), lambda: sst2.tune(given.which, epsilon, **plan))


def _language(given: argparse.Namespace) -> None:
    plan = {"steps": given.steps, "batch": given.batch}
    once("language, before", lambda: language.language(None, **plan))
    for epsilon in _epsilons(given):
        kind = f"epsilon {epsilon:g}" if epsilon else "non-private"
        name = f"language, {kind}, {given.steps} steps of {given.batch}"
        once(name, lambda epsilon=epsilon: language.language(epsilon, **plan))  # type: ignore[misc]


def _scale() -> None:
    for way, rank, length, batch in scale.ROWS:
        name = f"scale {way}, rank {rank}, {length} tokens, batch {batch}"
        once(name, lambda row=(way, rank, length, batch): scale.alone(*row))  # type: ignore[misc]


def _epsilons(given: argparse.Namespace) -> list[float]:
    return [float(epsilon) for epsilon in given.epsilons.split(",")]


if __name__ == "__main__":
    main()

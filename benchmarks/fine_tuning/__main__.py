"""Private fine-tuning measured: heads on frozen features, adapters, whole models, a language model.

Everything is resumable: features lie in a cache by chunks, every finished run is a line of the results file and is not
run again.

    python -m benchmarks.fine_tuning layers --cache CACHE                   # MiniLM, 4,096 sentences a chunk
    python -m benchmarks.fine_tuning public --public PUBLIC                 # what there is, and what of it is in SST-2
    python -m benchmarks.fine_tuning warm --public PUBLIC --encoder WARM    # MiniLM tuned on it, written to WARM
    python -m benchmarks.fine_tuning reviews WARM --public PUBLIC --encoder FILM   # WARM tuned on film reviews
    python -m benchmarks.fine_tuning features --cache CACHE                 # EfficientNet-Lite0, 2,500 images a chunk
    python -m benchmarks.fine_tuning head sst2 --cache CACHE --epsilons 1,3,8 --seeds 2
    python -m benchmarks.fine_tuning prompted minilm+prompt:smollm2@24 --epsilons 1,3,8,0 --seeds 3 --cache CACHE
    python -m benchmarks.fine_tuning search lora --epsilons 8               # learning rates, on held-out sentences
    python -m benchmarks.fine_tuning tune lora --epsilons 1,3,8 --seeds 2   # with the search's rate
    python -m benchmarks.fine_tuning energies                               # of the coordinates of `core`
    python -m benchmarks.fine_tuning language --epsilons 8,0 --steps 8 --batch 32
    python -m benchmarks.fine_tuning scale                                  # a step of 135M parameters
    python -m benchmarks.fine_tuning ranks                                  # the same on two processes

`layers`, `search`, `tune`, `energies` take `--encoder WARM` or FILM to start there (with a CACHE of its own), `core`
also `--public PUBLIC`, the folder of two packages (benchmarks/fine_tuning/public_text.py, film_reviews.py). ε = 0 is
for no privacy. $QUIETGRAD_DATA is where the data are; the weights are packages (docs/fine_tuning.md).
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.fine_tuning import (
    activations,
    classifier,
    heads,
    language,
    prompted,
    public_text,
    review_start,
    scale,
    sst2,
    two_ranks,
    warm_start,
)
from benchmarks.fine_tuning.results import once


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("which", nargs="?", default="lora")
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--epsilons", default="1,3,8")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--records", type=int, default=66_349)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--public", type=Path, help="folder of the packages of public text")
    parser.add_argument("--encoder", default="minilm", help="a folder that `warm` or `reviews` has written")
    parser.add_argument("--longer", type=int, default=0, help="train on sentences of more tokens only")
    parser.add_argument("--reuse", type=int, default=1, help="steps of each draw (not RGP, not `full`)")
    parser.add_argument("--second", type=float, default=sst2.SECOND, help="share of the second moments")
    parser.add_argument("--renew", type=int, default=0, help="draws after which `core` turns (with --reuse)")
    parser.add_argument("--even", type=float, default=0.0, help="noise by public energies to this power")
    parser.add_argument("--rank", type=int, default=classifier.CORE, help="of `core`, at most 64")
    parser.add_argument("--rates", type=int, default=1, help="how many learning rates `search` tries")
    parser.add_argument("--top", type=int, default=3, help="how many of MiniLM's six layers train")
    parser.add_argument(
        "--searched", type=float, default=8.0, help="the ε whose search gives `tune` its rate"
    )
    given = parser.parse_args()
    WHAT[given.what](given)


def _features(given: argparse.Namespace) -> None:
    given.cache.mkdir(parents=True, exist_ok=True)
    heads.features(given.cache, given.seconds)


def _layers(given: argparse.Namespace) -> None:
    activations.compute(
        classifier.encoder(given.encoder), sst2.sentences()._asdict(), given.cache, given.seconds
    )


def _public(given: argparse.Namespace) -> None:
    sentences = Path(os.environ["QUIETGRAD_DATA"]) / "SST-2"
    once("public text", lambda: public_text.compared(given.public, sentences))


def _warm(given: argparse.Namespace) -> None:
    name = f"warm start, lr {warm_start.RATE:g}, {warm_start.EPOCHS} epochs"
    once(name, lambda: warm_start.warm(given.public, Path(given.encoder)))


def _reviews(given: argparse.Namespace) -> None:
    name = f"film reviews, {review_start.REVIEWS} of them, lr {review_start.RATE:g}"
    once(name, lambda: review_start.warm(given.public, given.which, Path(given.encoder)))


def _heads(given: argparse.Namespace) -> None:
    task, cache, most = given.which, given.cache, given.records
    start = warm_start.start_of(given.encoder)
    records = f"{most} records" + (f", {start}" if start else "")
    once(f"head {task}, non-private, {records}", lambda: heads.head_without_noise(task, cache, most))
    for epsilon in _epsilons(given):
        for seed in range(given.seeds):
            name = f"head {task}, epsilon {epsilon:g}, run {seed}, {records}"
            once(name, lambda epsilon=epsilon: heads.head(task, cache, epsilon, most))  # type: ignore[misc]


def _prompted(given: argparse.Namespace) -> None:
    for epsilon in _epsilons(given):
        for seed in range(given.seeds if epsilon else 1):
            name = f"prompted head, {given.which}, " + (
                f"epsilon {epsilon:g}, run {seed}" if epsilon else "non-private"
            )
            once(name, lambda epsilon=epsilon: prompted.judged(given.which, given.cache, epsilon))  # type: ignore[misc]


def _search(given: argparse.Namespace) -> None:
    for epsilon in _epsilons(given):
        for lr in (sst2.RATES if epsilon else sst2.PLAIN_RATES)[given.which][: given.rates]:
            _tuned(given, epsilon, _plan(given, lr))


def _tune(given: argparse.Namespace) -> None:
    for epsilon in _epsilons(given):
        searched = given.searched if epsilon else 0.0
        lr = sst2.best_rate(given.which, searched, _plan(given), given.rates)
        for seed in range(given.seeds):
            _tuned(given, epsilon, _plan(given, lr, seed))


def _plan(given: argparse.Namespace, lr: float = 0.0, seed: int = 0) -> sst2.Plan:
    where = given.encoder, given.public, given.longer, given.reuse, given.second
    how = given.renew, given.even, given.rank
    return sst2.Plan(lr, given.steps, given.batch, given.top, seed, *where, *how)


def _energies(given: argparse.Namespace) -> None:
    plan = _plan(given)
    name = f"energies of core, {plan.top} layers, rank {plan.rank}, {warm_start.start_of(plan.encoder)}"
    once(name, lambda: sst2.energies(plan, given.cache))


def _tuned(given: argparse.Namespace, epsilon: float, plan: sst2.Plan) -> None:
    name = sst2.name_of(given.which, epsilon, plan)
    once(name, lambda: sst2.tune(given.which, epsilon, plan, given.cache))


def _language(given: argparse.Namespace) -> None:
    plan = {"steps": given.steps, "batch": given.batch}
    once("language, before", lambda: language.language(None, **plan))
    for epsilon in _epsilons(given):
        kind = f"epsilon {epsilon:g}" if epsilon else "non-private"
        name = f"language, {kind}, {given.steps} steps of {given.batch}"
        once(name, lambda epsilon=epsilon: language.language(epsilon, **plan))  # type: ignore[misc]


def _scale() -> None:
    for variant, rank, length, batch in scale.ROWS:
        name = f"scale {variant}, rank {rank}, {length} tokens, batch {batch}"
        once(name, lambda row=(variant, rank, length, batch): scale.alone(*row))  # type: ignore[misc]


def _ranks() -> None:
    once("two ranks, LoRA", two_ranks.compared)


def _epsilons(given: argparse.Namespace) -> list[float]:
    return [float(epsilon) for epsilon in given.epsilons.split(",")]


WHAT: dict[str, Callable[[argparse.Namespace], None]] = {
    "features": _features,
    "layers": _layers,
    "warm": _warm,
    "reviews": _reviews,
    "public": _public,
    "head": _heads,
    "prompted": _prompted,
    "search": _search,
    "tune": _tune,
    "energies": _energies,
    "language": _language,
    "scale": lambda _: _scale(),
    "ranks": lambda _: _ranks(),
}


if __name__ == "__main__":
    main()

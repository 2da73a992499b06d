"""A search on the private records themselves, with its price: of a random number of tries only the best is released.

Papernot and Steinke, "Hyperparameter tuning with Rényi differential privacy" (2022): K is drawn first from the
logarithmic distribution, Pr[K = k] = (1 − γ)^k / (k·log(1/γ)); each try draws its settings from one fixed distribution
and trains at the same price. ε of the whole is `repeat_and_select`. Everything but the best try is deleted: showing
another is not covered.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quietgrad.accounting.disk import disk, remove_tree
from quietgrad.accounting.rdp import logarithmic_gamma
from quietgrad.lab.errors import LabError
from quietgrad.lab.files import make_folder, number, read_json, to_json, write_whole
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.train import train
from quietgrad.lab.tune.search_space import SearchSpace

PLAN = "search.json"
"""The tries, drawn before the first one; deleted at the end, as their number is a part of what is not released."""

BEST = "best"
MOST_TRIES = 1_000
"""A guard of the disk, not of privacy: beyond it, K is cut, which the price covers (fewer tries tell less)."""

Progress = Callable[[], None]
"""Called after each try; how many there are stays private."""


@dataclass(frozen=True)
class PrivateFound:
    """The best try of a private search.

    Args:
        config: its settings.
        run: its folder, with a statement that claims the whole search's ε.
        accuracy: on the test part, which is taken as public.
        epsilon: of the whole search.
        delta: of the whole search.
    """

    config: Config
    run: Path
    accuracy: float
    epsilon: float
    delta: float


def private_search(
    space: SearchSpace,
    mean_tries: float,
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Progress = lambda: None,
) -> PrivateFound:
    """Draw how many tries and which, train them all, keep the best; goes on where it was stopped."""
    if len(space.methods) > 1:
        raise LabError(
            "A private search tries learning rates and clips of one method: all tries must have one price. Give one "
            "--methods, or search --on public or synthetic."
        )
    folder = out / BEST
    if not RunFolder(folder).finished:
        configs = _planned(space, mean_tries, out)
        for place, config in enumerate(configs):
            one = RunFolder(out / f"try-{place}")
            if not one.finished:
                train(config, one.path, resume=one.exists, data_dir=data_dir)
            progress()
        _keep_best(out, len(configs))
    _forget_others(out)
    return _found(folder)


def _planned(space: SearchSpace, mean_tries: float, out: Path) -> list[Config]:
    """The tries as they were drawn before the first of them."""
    make_folder(out)
    tuning = {"on": "private", "mean_tries": mean_tries}
    base = space.base.plain()
    if not (out / PLAN).exists():
        drawn = [space.applied(space.draw(), tuning).plain() for _ in range(draw_count(mean_tries))]
        write_whole(out / PLAN, to_json({"base": base, "mean_tries": mean_tries, "tries": drawn}).encode())
    stored: dict[str, Any] = read_json(out / PLAN)
    if (stored["base"], stored["mean_tries"]) != (base, mean_tries):
        raise LabError(f"{out} holds a search that started from another config. Give another --out.")
    return [parse_config(config) for config in stored["tries"]]


def draw_count(mean: float) -> int:
    """K ≥ 1 of this mean, from the operating system's entropy: inverse of the logarithmic distribution function."""
    gamma = logarithmic_gamma(mean)
    if gamma > 1 - 1e-9:
        return 1
    left, scale = secrets.randbits(53) / 2**53, -math.log(gamma)
    for count in range(1, MOST_TRIES):
        left -= (1 - gamma) ** count / (count * scale)
        if left < 0:
            return count
    return MOST_TRIES


def _keep_best(out: Path, tries: int) -> None:
    results = [RunFolder(out / f"try-{place}").read("results.json") for place in range(tries)]
    best = max(range(tries), key=lambda place: float(results[place]["accuracy"]))
    disk().replace(out / f"try-{best}", out / BEST)


def _forget_others(out: Path) -> None:
    """Delete all tries but the best and their number, also those that a search broken off here has left."""
    for other in out.glob("try-*"):
        remove_tree(other)
    disk().remove(out / PLAN)


def _found(folder: Path) -> PrivateFound:
    run = RunFolder(folder)
    results, claim = run.read("results.json"), run.read("privacy.json")["claim"]
    return PrivateFound(run.config, folder, results["accuracy"], number(claim["epsilon"]), claim["delta"])

"""Learning rates and options of the methods, for src/quietgrad/lab/run/presets.toml.

    python -m benchmarks.tune_presets --data-dir DATA --json FILE [--only gep]
    python -m benchmarks.tune_presets --data-dir DATA --json FILE --epsilon 0.3 --rates 0.25,0.5,1 --epochs 5,15

The second form takes the options of presets.toml and tries rates and lengths at a smaller budget: the same for each.

Runs each candidate on a draw of Fashion-MNIST that the demo does not use (12,000 private and 200 unlabelled public
images, another seed), on the demo's model and plan, and prints the test accuracies. Finished candidates are kept in
the file, one line each, and not run again. Test accuracy may be looked at here: all of Fashion-MNIST is public.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.presets import presets
from quietgrad.lab.run.train import train

DATA = {"name": "fashion-mnist", "private": 12_000, "public": 200, "test": 5_000, "seed": 7}
CANDIDATES: list[dict[str, Any]] = [
    {"method": {"name": "dp_sgd", "clip": 1.0}, "training": {"lr": 1.0}},
    {
        "method": {"name": "gep", "rank": 50, "clip": 1.0, "residual_clip": 0.3, "refresh_every": 4},
        "training": {"lr": 2.0},
    },
    {"method": {"name": "dp_sgd", "clip": 1.0}, "training": {"lr": 2.0}},
    {"method": {"name": "random_freeze", "freeze": 0.5, "clip": 1.0}, "training": {"lr": 2.0}},
    {"method": {"name": "top_groups", "freeze": 0.5, "clip": 1.0}, "training": {"lr": 2.0}},
    {"method": {"name": "rgp", "rank": 8, "clip": 1.0}, "training": {"lr": 2.0}},
    {
        "method": {"name": "pdp_sgd", "rank": 50, "clip": 1.0, "refresh_every": 10, "strength": 0.5},
        "training": {"lr": 2.0},
    },
    *(
        {
            "method": {"name": "gep", "rank": rank, "clip": 1.0, "refresh_every": 4, **options},
            "training": {"lr": lr},
        }
        for rank, options, lr in (
            (50, {"residual_clip": 1.0, "split": "energy"}, 1.0),
            (50, {"residual_clip": 1.0, "split": "energy"}, 2.0),
            (100, {"residual_clip": 1.0, "split": "energy"}, 1.0),
            (50, {"residual_clip": 0.5, "joint": True}, 2.0),
            (50, {"residual_clip": 1.0, "joint": True}, 1.0),
        )
    ),
    {
        "method": {"name": "pdp_sgd", "rank": 50, "clip": 1.0, "refresh_every": 10, "strength": 0.2},
        "training": {"lr": 1.0},
    },
    {"method": {"name": "gip", "keep": 0.5, "clip": 1.0}, "training": {"lr": 2.0}},
]


def configs(only: str | None, candidates: list[dict[str, Any]], epsilon: float) -> Iterator[Config]:
    """The candidates as full configs, the demo's plan."""
    for candidate in candidates:
        if only is None or candidate["method"]["name"] in only.split(","):
            yield parse_config({"data": DATA, "privacy": {"epsilon": epsilon}, **candidate})


def grid(rates: list[float], epochs: list[float]) -> list[dict[str, Any]]:
    """Every method that is compared at its preset's options, with each rate and length."""
    known = {name: preset["method"] for name, preset in presets().items() if preset.get("compared", False)}
    return [
        {"method": {"name": name, **options}, "training": {"lr": lr, "epochs": length}}
        for name, options in known.items()
        for lr in rates
        for length in epochs
    ]


def finished(file: Path) -> dict[str, float]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {line["key"]: line["accuracy"] for line in map(json.loads, lines)}


def key(config: Config) -> str:
    """What tells candidates apart."""
    training = config.training
    rest = [training.epochs, config.privacy.epsilon]
    return json.dumps([config.method.model_dump(), training.lr, training.momentum, *rest])


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="methods, separated by commas")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--rates", type=_numbers, default=[], help="learning rates, separated by commas")
    parser.add_argument("--epochs", type=_numbers, default=[15.0], help="with --rates")
    arguments = parser.parse_args()
    candidates = grid(arguments.rates, arguments.epochs) if arguments.rates else CANDIDATES
    for config in configs(arguments.only, candidates, arguments.epsilon):
        known = finished(arguments.json)
        if key(config) not in known:
            with tempfile.TemporaryDirectory() as folder:
                outcome = train(config, Path(folder) / "run", data_dir=arguments.data_dir)
            line = {
                "key": key(config),
                "accuracy": outcome.accuracy,
                "noise_to_signal": outcome.noise_to_signal,
                "seconds": outcome.seconds,
            }
            with arguments.json.open("a") as file:
                file.write(json.dumps(line) + "\n")
    for name, accuracy in sorted(finished(arguments.json).items(), key=lambda item: -item[1]):
        print(f"{100 * accuracy:.2f}  {name}")


if __name__ == "__main__":
    main()

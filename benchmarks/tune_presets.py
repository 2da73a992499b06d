"""Learning rates and options of the methods, for src/quietgrad/lab/run/presets.toml.

    python -m benchmarks.tune_presets --data-dir DATA --json FILE [--only gep]

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


def configs(only: str | None) -> Iterator[Config]:
    """The candidates as full configs, the demo's plan."""
    for candidate in CANDIDATES:
        if only is None or candidate["method"]["name"] in only.split(","):
            yield parse_config({"data": DATA, "privacy": {"epsilon": 2.0}, **candidate})


def finished(file: Path) -> dict[str, float]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {line["key"]: line["accuracy"] for line in map(json.loads, lines)}


def key(config: Config) -> str:
    """What tells candidates apart."""
    return json.dumps([config.method.model_dump(), config.training.lr, config.training.momentum])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", help="methods, separated by commas")
    arguments = parser.parse_args()
    for config in configs(arguments.only):
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

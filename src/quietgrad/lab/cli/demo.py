"""`make demo`: the leaderboard of seven methods on the embedded Fashion-MNIST subset at ε = 2, in a few minutes."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from quietgrad.lab.cli.compare import METHODS, show, show_progress
from quietgrad.lab.report import write_report
from quietgrad.lab.report.plots import leaderboard_bars, save_png
from quietgrad.lab.run.config import Config, parse_config

EPSILON = 2.0


def demo_config() -> Config:
    """12,000 private and 200 unlabelled public images, the 26k tanh CNN, 15 epochs."""
    return parse_config({"training": {"epochs": 15, "batch": 250}, "privacy": {"epsilon": EPSILON}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)  # a demo starts anew each time
    console = Console()
    console.print(
        f"Training privately at ε = {EPSILON:g} with each method on 12,000 embedded Fashion-MNIST images.",
        highlight=False,
    )
    made = show_progress(demo_config(), args.methods.split(","), [EPSILON], args.seeds, args.out, None)
    show(made, console)
    save_png(leaderboard_bars(made.rows), args.out / "leaderboard.png")
    console.print(
        f"To read: {write_report([args.out])}; for scripts: {args.out / 'results.json'}", highlight=False
    )


if __name__ == "__main__":
    main()

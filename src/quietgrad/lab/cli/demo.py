"""`make demo`: accuracy against ε on the embedded Fashion-MNIST subset, for the linear probe, DP-SGD and the papers."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console

from quietgrad.lab.cli.compare_view import show, show_progress
from quietgrad.lab.compare.compare import Curves
from quietgrad.lab.compare.verdict import verdict
from quietgrad.lab.report import write_report
from quietgrad.lab.report.plots import accuracy_against_epsilon, save_png
from quietgrad.lab.run.config import Config, parse_config
from quietgrad.lab.run.presets import QUIET

EPSILON = 2.0
METHODS = "dp_sgd,dp_sgd_warm,gep,random_freeze"
CURVES: Curves = {QUIET: ((0.15, 0.3, 0.5, 1.0, 2.0), 3), "dp_sgd": ((0.3,), 1)}
"""The private linear probe takes seconds, so that it can show its spread; a network at every ε would take too long."""


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
        "Training privately on 12,000 embedded Fashion-MNIST images, ε from 0.15 to 2: the private linear probe, "
        "DP-SGD, methods of the papers, and a network without privacy to compare with. Each line is one training.",
        highlight=False,
    )
    methods = args.methods.split(",")
    made = show_progress(demo_config(), methods, [EPSILON], args.seeds, args.out, None, curves=CURVES)
    show(made, console)
    console.print(verdict(made.rows), highlight=False)
    figure = args.out / "accuracy.png"
    save_png(accuracy_against_epsilon(made.rows), figure)
    console.print(
        f"To read: {write_report([args.out])}; the figure alone: {figure}; for scripts: {args.out / 'results.json'}",
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()

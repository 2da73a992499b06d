"""`make demo`: the leaderboard of all methods on the embedded Fashion-MNIST subset at ε = 2, in a few minutes."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

from rich.console import Console

from quietgrad.lab.compare import jobs, public_only, rows, run_all
from quietgrad.lab.config import Config, parse_config
from quietgrad.lab.leaderboard import Bars, table
from quietgrad.lab.run_folder import RunFolder

METHODS = ("dp_sgd", "gep", "rgp", "pdp_sgd", "random_freeze", "gip", "top_groups")
EPSILON = 2.0


def demo_config() -> Config:
    """12,000 private and 200 unlabelled public images, the 26k tanh CNN, 15 epochs."""
    return parse_config({"training": {"epochs": 15, "batch": 250}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    shutil.rmtree(args.out, ignore_errors=True)  # a demo starts anew each time
    base, console = demo_config(), Console()
    todo = jobs(base, args.methods.split(","), [EPSILON], args.seeds, args.out, None)
    with Bars(todo, console) as bars:
        results = run_all(todo, bars.heard)
    board = rows(todo, results)
    lower = public_only(base, args.seeds, None)
    board = board if lower is None else [lower, *board]
    console.print(table(board))
    content = {
        "epsilon": EPSILON,
        "delta": base.privacy.delta,
        "results": [dataclasses.asdict(row) for row in board],
    }
    RunFolder(args.out).write_json("results.json", content)
    console.print(f"δ = {base.privacy.delta:g}. Written to {args.out / 'results.json'}.")


if __name__ == "__main__":
    main()

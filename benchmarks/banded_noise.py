"""Noise of summed updates with banded noise, relative to DP-SGD at the same ε: computed, and measured from releases.

    python -m benchmarks.banded_noise [--json] [--figure FILE.png]

A run on empty batches releases nothing but noise. What is added up over its steps is measured in every coordinate.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import quietgrad as qg
from quietgrad._sampling.poisson import ReplayedSampler

RECORDS, BATCH, DELTA = 50_000, 500, 1e-5
EPOCHS = (1.3, 3.0, 40.0)
EPSILONS = (1.0, 3.0, 8.0)
MOST_MEASURED = 4_000
"""Steps of a run that is measured; longer ones are computed alone."""


def measured(choice: Any, rate: float, steps: int, coordinates: int = 2_000) -> float:
    """Root mean square of the partial sums of released noise, over all steps and coordinates."""
    model = nn.Linear(coordinates, 1, bias=False)
    mechanism = replace(qg.methods.dp_sgd(clip=1.0), noise=choice.noise).with_noise(choice.noise_multiplier)
    sampler = ReplayedSampler(RECORDS, [[]] * steps, rate=rate, groups=choice.bands)
    total, squares = torch.zeros(coordinates, dtype=torch.float64), 0.0
    with qg.Privatizer(model, mechanism, sampler) as private:
        for _ in sampler:
            private.release()
            assert model.weight.grad is not None
            total += model.weight.grad.flatten().double()
            squares += float(total.square().mean())
    return math.sqrt(squares / steps)


def rows(epochs: tuple[float, ...] = EPOCHS, epsilons: tuple[float, ...] = EPSILONS) -> list[dict[str, Any]]:
    """One row for each plan, budget and number of bands."""
    table = []
    for epoch in epochs:
        rate, steps = BATCH / RECORDS, round(epoch * RECORDS / BATCH)
        for epsilon in epsilons:
            plain = None
            for choice in qg.band_choices(rate=rate, steps=steps, epsilon=epsilon, delta=DELTA, most=32):
                found = measured(choice, rate, steps) if steps <= MOST_MEASURED else None
                plain = found if choice.bands == 1 else plain
                table.append(
                    {
                        "epochs": epoch,
                        "epsilon": epsilon,
                        "bands": choice.bands,
                        "noise_multiplier": round(choice.noise_multiplier, 4),
                        "computed": round(choice.relative_noise, 3),
                        "measured": round(found / plain, 3) if found and plain else None,
                    }
                )
    return table


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Relative noise over the number of bands, one line for each plan and budget."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for epoch, epsilon in sorted({(row["epochs"], row["epsilon"]) for row in table}):
        mine = [row for row in table if (row["epochs"], row["epsilon"]) == (epoch, epsilon)]
        line = axes.plot(
            [r["bands"] for r in mine],
            [r["computed"] for r in mine],
            label=f"{epoch:g} epochs, ε = {epsilon:g}",
        )
        seen = [(r["bands"], r["measured"]) for r in mine if r["measured"] is not None]
        if seen:
            axes.plot(*zip(*seen, strict=True), "o", color=line[0].get_color())
    axes.set(xscale="log", xlabel="bands", ylabel="noise of summed updates, DP-SGD = 1", ylim=(0, None))
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    table = rows()
    if args.figure is not None:
        draw(table, args.figure)
    if args.json:
        print(json.dumps(table, indent=2))
    else:
        for row in table:
            print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()

"""What the linear probe's constants rest on: regret of path length, dimension and clip.

Measured on Gaussian mixtures.

    python -m benchmarks.linear_probe_rule            # about 40 minutes on one core
    python -m benchmarks.linear_probe_rule --records 3000 --json
    python -m benchmarks.linear_probe_rule --records 3000 --vary clip

Each mixture has a power-law spectrum and class means whose share of the variance falls with the rank as i^-b: b = 0
spreads the signal over all directions, b = 1.5 keeps it in the first ones. Regret is the accuracy lost against the best
cell of the same mixture and budget, in percent of what there is to learn above chance.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from quietgrad._linear_probe.rule import gaussian_parameter, whitening
from quietgrad.features.encoders import unit

DELTA, DIMENSIONS, TEST = 1e-5, 200, 4000
EPSILONS = (0.2, 1.0, 3.0)
PATHS = (0.4, 0.8, 1.6)  # τC/(μN)
WHITENINGS = (0.0, 0.5, 1.0, 2.0, math.inf)  # effective dimensions over √(μN)
CLIPS = (0.125, 0.25, 0.5)
PATHS_OF_CLIPS = (0.25, 0.5, 1.0)


class Cell(NamedTuple):
    """Settings that are judged together."""

    dimensions: float
    path: float
    clip: float = 0.5


GRIDS = {
    "dimensions": [Cell(d, p) for d in WHITENINGS for p in PATHS],
    "clip": [Cell(2.0, p, c) for c in CLIPS for p in PATHS_OF_CLIPS],
}


@dataclass(frozen=True)
class Mixture:
    """Records of a mixture, and its spectrum."""

    classes: int
    x: Float[Tensor, "n d"]
    y: Int64[Tensor, " n"]
    test_x: Float[Tensor, "m d"]
    test_y: Int64[Tensor, " m"]
    spectrum: Float[Tensor, " d"]


def mixture(records: int, classes: int, decay: float, signal_decay: float) -> Mixture:
    """Heavy-tailed lengths, spectrum i^-decay, between-class share i^-signal_decay of total 8."""
    rng = torch.Generator().manual_seed(7)
    rank = torch.arange(1.0, DIMENSIONS + 1)
    spectrum = rank**-decay / (rank**-decay).sum()
    share = 8.0 * rank**-signal_decay / (rank**-signal_decay).sum()
    means = torch.randn(classes, DIMENSIONS, generator=rng) * (share * spectrum).sqrt()
    y = torch.randint(classes, (records + TEST,), generator=rng)
    lengths = torch.exp(0.3 * torch.randn(len(y), 1, generator=rng))
    x = lengths * (means[y] + torch.randn(len(y), DIMENSIONS, generator=rng) * spectrum.sqrt())
    return Mixture(classes, x[TEST:], y[TEST:], x[:TEST], y[:TEST], spectrum)


def accuracy(data: Mixture, epsilon: float, cell: Cell) -> float:
    """Full-batch DP-SGD of a linear head in closed form: a linear layer's gradient is an outer product."""
    mu, records, clip = gaussian_parameter(epsilon, DELTA), len(data.y), cell.clip
    wanted = cell.dimensions * math.sqrt(mu * records)
    scale = data.spectrum ** (-whitening(data.spectrum, wanted) / 2)
    x, test = unit(data.x * scale), unit(data.test_x * scale)
    length = cell.path * mu * records / clip
    top = float(torch.linalg.eigvalsh(x.T @ x / records)[-1])
    steps = min(max(4, math.ceil(length * top / data.classes)), 300)
    weights, targets = torch.zeros(DIMENSIONS, data.classes), one_hot(data.y, data.classes).float()
    rng = torch.Generator().manual_seed(1000)
    for _ in range(steps):
        errors = (x @ weights).softmax(1) - targets
        errors = errors * (clip / errors.norm(dim=1).clamp_min(1e-12)).clamp_max(1.0)[:, None]
        noise = clip * math.sqrt(steps) / mu * torch.randn(weights.shape, generator=rng)
        weights = weights - length / steps * (x.T @ errors + noise) / records
    return float(((test @ weights).argmax(1) == data.test_y).float().mean())


def regrets(records: tuple[int, ...], grid: list[Cell]) -> dict[Cell, list[float]]:
    """The regret of each cell in each mixture and budget."""
    found: dict[Cell, list[float]] = defaultdict(list)
    for n, classes, decay, signal in product(records, (2, 10), (0.5, 1.2), (0.0, 0.7, 1.5)):
        data = mixture(n, classes, decay, signal)
        for epsilon in EPSILONS:
            values = {cell: accuracy(data, epsilon, cell) for cell in grid}
            for cell, value in values.items():
                found[cell].append(100 * (max(values.values()) - value) / (1 - 1 / classes))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, nargs="+", default=[3000, 12000])
    parser.add_argument("--vary", choices=list(GRIDS), default="dimensions")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [
        {**cell._asdict(), "mean": sum(v) / len(v), "worst": max(v), "settings": len(v)}
        for cell, v in regrets(tuple(args.records), GRIDS[args.vary]).items()
    ]
    if args.json:
        print(json.dumps(rows))
        return
    for row in sorted(rows, key=lambda row: row["mean"]):
        cell = f"dimensions {row['dimensions']:>4g}·s  path {row['path']:.2f}  clip {row['clip']:.3f}"
        print(f"{cell}  mean {row['mean']:5.2f}  worst {row['worst']:5.1f}")


if __name__ == "__main__":
    main()

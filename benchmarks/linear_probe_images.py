"""What products of ScatterNet's features and second moments along made-up directions are worth, on training images.

    python -m benchmarks.linear_probe_images --data-dir DATA --records 12000 --public 200
    python -m benchmarks.linear_probe_images --data-dir DATA --records 48000 --public 2000 --epsilons 2
    python -m benchmarks.linear_probe_images --data-dir DATA --records 40000 --public 0 --judges 20000 --epsilons 3

Test images are never read: `records` training images to learn from, `judges` others to judge by, and public ones
without labels; with `--public 0` made-up images in their place, around the mean of the records (without the little
noise that a release adds), and second moments along their directions too. The head is trained in closed form, with the
noise that the rule's plan has.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.nn.functional import one_hot

from quietgrad._linear_probe.recipe import SYNTHETIC
from quietgrad._linear_probe.rule import MOMENTS_SHARE, Settings, gaussian_parameter, settings, whitening
from quietgrad.features.encoders import Mirrored, Scatter, ScatterRoots, encode, unit
from quietgrad.features.moments import Moments, moments_of, moments_standing_out
from quietgrad.features.pipeline import Rescale
from quietgrad.features.quadratic import Quadratic, quadratic_moments_of
from quietgrad.features.synthetic import synthetic_images
from quietgrad.lab.data import load

DELTA, REPEATS = 1e-5, 3
ROWS = 512
"""Records at a time: their rows stay in the cache between the two products of a step."""


@dataclass(frozen=True)
class Images:
    """Encoded images to learn from, to judge by, and without labels; the centre of the first or of the last."""

    x: Float[Tensor, "n d"]
    y: Int64[Tensor, " n"]
    judge_x: Float[Tensor, "m d"]
    judge_y: Int64[Tensor, " m"]
    public: Float[Tensor, "p d"]
    centre: Float[Tensor, " d"]


def images(
    name: str, data_dir: Path | None, records: int, judges: int, public: int, *, mirrored: bool, roots: bool
) -> Images:
    drawn = load(name, data_dir=data_dir, private=records + judges, public=public)
    encoder: nn.Module = (ScatterRoots if roots else Scatter)(drawn.input_shape)
    encoder = Mirrored(encoder) if mirrored else encoder
    x, y = drawn.private.tensors
    unlabelled = drawn.public_inputs if public else synthetic_images(SYNTHETIC, drawn.input_shape)
    rows, others = (encode(encoder, part).flatten(1) for part in (x, unlabelled))
    learn, judge = rows[:records], rows[records:]
    centre = others.mean(0) if public else learn.mean(0)
    return Images(learn, y[:records], judge, y[records:], others, centre)


def linear(data: Images, rule: Settings) -> Rescale:
    moments = moments_of(data.public, rule.directions)
    return Rescale(moments.centred_at(data.centre), whitening(moments.variances, rule.dimension))


def quadratic(data: Images, rule: Settings) -> Quadratic:
    moments = quadratic_moments_of(data.public, rule.directions)
    return Quadratic(moments.centred_at(data.centre), whitening(moments.variances, rule.dimension))


def mixed(data: Images, rule: Settings) -> Rescale:
    made_up, std = linear(data, rule), 1 / (rule.signal * math.sqrt(MOMENTS_SHARE))
    rows = unit((data.x - made_up.mean) @ made_up.directions)
    second = rows.T @ rows / len(rows)
    noise = torch.randn(second.shape, generator=torch.Generator().manual_seed(7))
    own = moments_standing_out(second + std * noise, std)
    turned = Moments(made_up.mean, made_up.directions @ own.directions, own.variances)
    return Rescale(turned, whitening(own.variances, rule.dimension))


VARIANTS: dict[str, Callable[[Images, Settings], nn.Module]] = {
    "linear": linear,
    "with products": quadratic,
    "mixed": mixed,
}


def accuracies(data: Images, variant: str, epsilon: float) -> list[float]:
    """In percent, one for each noise."""
    rule = settings(records=len(data.y), classes=10, epsilon=epsilon, delta=DELTA)
    turn = VARIANTS[variant](data, rule)
    x, judge = (torch.cat([turn(few) for few in rows.split(4096)]) for rows in (data.x, data.judge_x))
    mu = gaussian_parameter(epsilon, DELTA) * math.sqrt(1 - MOMENTS_SHARE * (variant == "mixed"))
    heads = (trained(x, data.y, rule, mu, repeat) for repeat in range(REPEATS))
    return [100 * float(((judge @ head).argmax(1) == data.judge_y).float().mean()) for head in heads]


def trained(x: Tensor, y: Tensor, rule: Settings, mu: float, repeat: int) -> Float[Tensor, "k c"]:
    """Full-batch DP-SGD of a linear head: a linear layer's gradient is an outer product."""
    targets, weights = one_hot(y, 10).float(), torch.zeros(x.shape[1], 10)
    std = rule.clip * math.sqrt(rule.steps) / mu
    rng = torch.Generator().manual_seed(1000 + repeat)
    for _ in range(rule.steps):
        total = std * torch.randn(weights.shape, generator=rng)
        for rows, wanted in zip(x.split(ROWS), targets.split(ROWS), strict=True):
            errors = (rows @ weights).softmax(1) - wanted
            lengths = errors.norm(dim=1, keepdim=True).clamp_min(1e-12)
            total += rows.T @ (errors * (rule.clip / lengths).clamp_max(1.0))
        weights -= rule.lr / len(x) * total
    return weights


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=("mnist", "fashion-mnist"), default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--records", type=int, default=12_000)
    parser.add_argument("--judges", type=int, default=10_000)
    parser.add_argument("--public", type=int, default=200)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.15, 0.5, 2.0])
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--roots", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sizes = (args.records, args.judges, args.public)
    data = images(args.data, args.data_dir, *sizes, mirrored=args.mirrored, roots=args.roots)
    variants = [variant for variant in VARIANTS if variant != "mixed" or not args.public]
    found: dict[str, list[float]] = {}
    for epsilon in args.epsilons:
        for variant in variants:
            scores = found[f"epsilon {epsilon:g}, {variant}"] = accuracies(data, variant, epsilon)
            print(
                f"ε {epsilon:<5g} {variant:14} {np.mean(scores):.2f} ± {np.std(scores, ddof=1):.2f}",
                flush=True,
            )
            if args.json:
                args.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

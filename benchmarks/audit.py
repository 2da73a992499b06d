"""What the audits show: bounds of every method at several ε, and bugs made on purpose with the tool that sees each.

python -m benchmarks.audit methods [--json FILE] [--only NAME ...]    step canaries, 13k-parameter MLP, T = 1200
python -m benchmarks.audit broken  [--json FILE]                      the table of broken mechanisms
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks import broken
from quietgrad.audit import audit_mechanism, compare_neighbours
from quietgrad.lab.models import build
from quietgrad.public_losses import random_label_losses

DELTA = 1e-5
RECORDS, BATCH, STEPS = 10_000, 250, 1_200
CANARIES = 48
EPSILONS = (1.0, 2.0, 8.0)
Row = dict[str, Any]


def model() -> nn.Module:
    torch.manual_seed(0)
    return build("mlp", (1, 28, 28), 10, hidden=(16,))


def public() -> Callable[[nn.Module], Any]:
    """Random images will do: an audit asks whether the noise is there, not whether the basis is good."""
    images = torch.randn(100, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    return random_label_losses(images, 10)


def methods(sampler: qg.PoissonSampler) -> dict[str, Callable[[], qg.Mechanism]]:
    """Every method with its usual options."""
    m = qg.methods
    return {
        "dp_sgd": lambda: m.dp_sgd(clip=1.0),
        "gep": lambda: m.gep(public(), rank=50, clip=1.0, residual_clip=0.5, refresh_every=20),
        "biased_gep": lambda: m.biased_gep(public(), rank=50, clip=1.0, refresh_every=20),
        "pdp_sgd": lambda: m.pdp_sgd(public(), rank=50, clip=1.0, refresh_every=20),
        "rpdp_sgd": lambda: m.rpdp_sgd(rank=50, clip=1.0, refresh_every=20),
        "rgp": lambda: m.rgp(rank=4, clip=1.0),
        "rgp_random": lambda: m.rgp_random(rank=4, clip=1.0),
        "dp_power_sgd": lambda: m.dp_power_sgd(rank=4, clip=1.0),
        "random_freeze": lambda: m.random_freeze(freeze=0.5, clip=1.0),
        "ranked_freeze": lambda: m.ranked_freeze(freeze=qg.schedules.Cooling(0.5, 4), clip=1.0),
        "posterior_freeze": lambda: m.posterior_freeze(freeze=0.5, clip=1.0),
        "random_k": lambda: m.random_k(keep=0.5, clip=1.0),
        "top_groups": lambda: m.top_groups(freeze=0.5, clip=1.0),
        "datalens": lambda: m.datalens(keep=0.1, clip=1.0),
        "gip": lambda: m.gip(model(), sampler, keep=0.5, clip=1.0).for_budget(
            sampler, epsilon=2.0, delta=DELTA
        ),
    }


def audited_methods(only: list[str], epsilons: list[float]) -> Iterator[Row]:
    """Claimed ε and what canaries show of it; as many scores as 16 a step over the whole run would give at ε = 1."""
    sampler = qg.PoissonSampler(RECORDS, rate=BATCH / RECORDS, steps=STEPS, seed=0)
    noise = {
        e: qg.calibrate(qg.methods.dp_sgd(), sampler, epsilon=e, delta=DELTA).multiplier(0) for e in epsilons
    }
    for name, make in methods(sampler).items():
        for target in epsilons if not only or name in only else ():
            started = time.perf_counter()
            report = audit_mechanism(
                model(),
                make().with_noise(noise[target]),
                records=RECORDS,
                rate=BATCH / RECORDS,
                steps=STEPS,
                delta=DELTA,
                canaries=CANARIES,
            )
            yield {
                "method": name,
                "claimed": report.claimed,
                "lower_bound": report.lower_bound,
                "share": report.lower_bound / report.claimed,
                "reachable": report.reachable,
                "verdict": report.verdict,
                "scores": report.details["scores"],
                "canaries_per_step": report.details["canaries_per_step"],
                "seconds": time.perf_counter() - started,
            }


def audited_bugs() -> Iterator[Row]:
    """Each bug under the tool that can see it, and the same settings without it."""
    sound = qg.methods.dp_sgd(clip=1.0).with_noise(2.0)
    gep = qg.methods.gep(public(), rank=50, clip=1.0, residual_clip=0.5, refresh_every=20).with_noise(2.0)
    yield _canaries("none (dp_sgd)", sound)
    yield _canaries("none (gep)", gep)
    yield _canaries("half the noise", broken.half_noise(sound))
    yield _canaries("no clipping", broken.no_clip(sound))
    half_accounted = broken.OneReleaseAccounted.of(gep)
    yield _canaries("only one of GEP's releases accounted", half_accounted, privatizer=broken.Unchecked)
    block = next(name for name, _ in model().named_parameters() if name.endswith("bias"))
    yield _canaries(f"noise missing on {block}", broken.silent_block(sound, block))
    yield _canaries("noise seed reused", sound, noise_source=broken.ReusedSeed())
    yield _neighbours("none (dp_sgd)", sound)
    yield _neighbours("batch-size divisor", sound, privatizer=broken.BatchSizeDivisor)
    yield _neighbours("skipped empty batch", sound, privatizer=broken.SkipsEmptyBatches)
    yield _neighbours("no clipping", broken.no_clip(sound))


def _canaries(bug: str, mechanism: qg.Mechanism, **options: Any) -> Row:
    report = audit_mechanism(
        model(),
        mechanism,
        records=RECORDS,
        rate=BATCH / RECORDS,
        steps=STEPS,
        delta=DELTA,
        canaries=CANARIES,
        **options,
    )
    reused = report.details["noise_reused_in_steps"]
    return {
        "bug": bug,
        "tool": "step canaries",
        "caught": report.verdict == "violated",
        "evidence": f"the same noise in steps {reused}"
        if reused
        else f"ε ≥ {report.lower_bound:.3g} against {report.claimed:.3g} claimed"
        + (f", loudest in {report.details['loudest_block']}" if report.verdict == "violated" else ""),
    }


def _neighbours(bug: str, mechanism: qg.Mechanism, **options: Any) -> Row:
    rng = torch.Generator().manual_seed(2)
    images, labels = torch.randn(100, 1, 28, 28, generator=rng), torch.randint(10, (100,), generator=rng)
    report = compare_neighbours(
        model(), mechanism, TensorDataset(images, labels), _losses, rate=0.1, deterministic=True, **options
    )
    kinds = sorted({difference.kind for difference in report.differences})
    return {
        "bug": bug,
        "tool": "neighbouring runs",
        "caught": not report.passed,
        "evidence": f"differences in {', '.join(kinds)}" if kinds else "no difference",
    }


def _losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y, reduction="none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", choices=["methods", "broken"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for row in audited_methods(args.only, args.epsilons) if args.table == "methods" else audited_bugs():
        rows.append(row)
        cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(cells) + " |", flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

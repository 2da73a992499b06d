"""What the audits show: bounds of every method at several ε, and bugs made on purpose with the tool that sees each.

python -m benchmarks.audit methods [--json FILE] [--only NAME ...]    step canaries, 13k-parameter MLP, T = 1200
python -m benchmarks.audit broken  [--json FILE]                      the table of broken mechanisms
python -m benchmarks.audit one-run [--json FILE] [--only NAME ...]    one-run bounds of methods and bands, T = 64
python -m benchmarks.audit order   [--json FILE]                      one-run bounds of simulated canaries
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from benchmarks import broken
from quietgrad.audit import audit_mechanism, audit_one_run, compare_neighbours
from quietgrad.audit.bounds import gaussian_epsilon
from quietgrad.audit.one_run import gaussian_trade_off, guess, one_run_epsilon, one_run_mu
from quietgrad.audit.one_run_report import SHARES
from quietgrad.audit.order_statistics import refuted_by_order
from quietgrad.audit.report import AuditReport
from quietgrad.lab.models import build
from quietgrad.public_losses import random_label_losses

DELTA = 1e-5
RECORDS, BATCH, STEPS = 10_000, 250, 1_200
RUN_STEPS, RUN_RATE = 64, 1 / 8
"""Of runs that are audited as a whole: eight bands of this rate are the most."""
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


def audited_runs(only: list[str], epsilons: list[float]) -> Iterator[Row]:
    """Claimed ε of a whole run, what guesses about 400 canaries show of it, and the order of 100 canaries.

    Order needs scores that are independent: canaries of methods with a subspace share coordinates.
    """
    plain = qg.PoissonSampler(RECORDS, rate=RUN_RATE, steps=RUN_STEPS, seed=0)
    made = {name: (make, 1) for name, make in methods(plain).items()}
    made |= {f"dp_sgd, {bands} bands": (_banded(bands), bands) for bands in (4, 8)}
    for name, (make, bands) in made.items():
        for target in epsilons if not only or name in only else ():
            batches = qg.PoissonSampler(RECORDS, rate=RUN_RATE, steps=RUN_STEPS, groups=bands)
            mechanism = qg.calibrate(make(), batches, epsilon=target, delta=DELTA)
            started = time.process_time()
            many, few = (_one_run(mechanism, canaries, groups=bands) for canaries in (400, 100))
            guessed = max(many.details["epsilon_delta_bound"], many.details["trade_off_bound"])
            by_order = few.details["order_statistics_bound"]
            yield {
                "method": name,
                "claimed": many.claimed,
                "by_400_guesses": guessed,
                "share": guessed / many.claimed,
                "by_order_of_100": by_order,
                "share_by_order": None if by_order is None else by_order / few.claimed,
                "verdicts": f"{many.verdict}, {few.verdict}",
                "seconds": time.process_time() - started,
            }


def _banded(bands: int) -> Callable[[], qg.Mechanism]:
    noise = qg.BandedNoise.optimised(bands, RUN_STEPS)
    return lambda: dataclasses.replace(qg.methods.dp_sgd(clip=1.0), noise=noise)


def _one_run(
    mechanism: qg.Mechanism, canaries: int, *, groups: int = 1, rate: float = RUN_RATE
) -> AuditReport:
    return audit_one_run(
        model(),
        mechanism,
        records=RECORDS,
        rate=rate,
        steps=RUN_STEPS,
        delta=DELTA,
        canaries=canaries,
        groups=groups,
    )


def ordered_scores(repetitions: int = 9, alpha: float = 0.05) -> Iterator[Row]:
    """Medians of the bounds by guesses with m canaries, and of that by order with a quarter of them."""
    rng = np.random.default_rng(1)

    def scores(mu: float, canaries: int) -> tuple[Any, Any]:
        included = rng.random(canaries) < 0.5
        return mu * included + rng.standard_normal(canaries), included

    for mu in (0.5, 1.0, 2.0):
        for canaries in (400, 800):
            by_guesses, by_order = list[float](), list[float]()
            for _ in range(repetitions):
                by_guesses.append(_by_guesses(*scores(mu, canaries), alpha))
                by_order.append(_by_order(*scores(mu, canaries // 4), alpha / 2))
            yield {
                "mu": mu,
                "truth": gaussian_epsilon(mu, DELTA),
                "canaries": canaries,
                "by_guesses": float(np.median(by_guesses)),
                "by_order_of_a_quarter": float(np.median(by_order)),
            }


def _by_guesses(scores: Any, included: Any, alpha: float) -> float:
    """The better of both bounds, as a report computes them."""
    canaries, each, best = len(scores), alpha / 2 / len(SHARES), 0.0
    for share in SHARES:
        right, guesses = guess(scores, included, max(2, 2 * round(share * canaries / 2)))
        mu = float(one_run_mu(np.array([right]), guesses, canaries, alpha=each)[0])
        plain = one_run_epsilon(right, guesses, canaries, delta=DELTA, alpha=each)
        best = max(best, plain, gaussian_epsilon(mu, DELTA))
    return best


def _by_order(scores: Any, included: Any, alpha: float) -> float:
    low, high = 0.0, 8.0
    while high - low > 0.02:
        middle = (low + high) / 2
        refuted = refuted_by_order(scores, included, gaussian_trade_off(middle), alpha=alpha)
        low, high = (middle, high) if refuted else (low, middle)
    return gaussian_epsilon(low, DELTA)


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
    for name, forget in (("none (dp_sgd, 4 bands)", False), ("bands that the event forgets", True)):
        yield _runs(name, forget=forget)
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


def _runs(bug: str, *, forget: bool) -> Row:
    """Without the bands in the event, a record may take part in every step."""
    kind = broken.ForgottenBands if forget else qg.BandedNoise
    noise = kind(coefficients=qg.BandedNoise.square_root(4).coefficients)
    mechanism = dataclasses.replace(qg.methods.dp_sgd(clip=1.0), noise=noise).with_noise(8.0)
    report = _one_run(mechanism, 200, groups=1 if forget else 4, rate=1.0 if forget else 0.25)
    return {
        "bug": bug,
        "tool": "one-run gradient canaries",
        "caught": report.verdict == "violated",
        "evidence": f"ε ≥ {report.lower_bound:.3g} against {report.claimed:.3g} claimed",
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
    parser.add_argument("table", choices=["methods", "broken", "one-run", "order"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--epsilons", nargs="*", type=float, default=EPSILONS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tables = {
        "methods": lambda: audited_methods(args.only, args.epsilons),
        "broken": audited_bugs,
        "one-run": lambda: audited_runs(args.only, args.epsilons),
        "order": ordered_scores,
    }
    rows = []
    for row in tables[args.table]():
        rows.append(row)
        cells = (f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values())
        print("| " + " | ".join(cells) + " |", flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

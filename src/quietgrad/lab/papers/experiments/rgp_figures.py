"""RGP's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quietgrad.lab.diagnostics.low_rank import LowRankObserver, LowRankReport
from quietgrad.lab.papers.experiment import Computed, Experiment, Place
from quietgrad.lab.papers.finding import Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.verdicts import Order, judge_statement
from quietgrad.lab.papers.watched import figure_config, mean_of, prepared, watch


def _reports(scale: Scale, place: Place, *changes: str) -> list[LowRankReport]:
    shape = (
        "data.name=embedded",
        "model.name=mlp",
        "model.hidden=[256, 128]",
        "training.batch=250",
        "data.private=4000",
        "data.test=500",
        "training.epochs=5",
        "training.lr=4.0",
        "training.momentum=0.0",
        "training.schedule=constant",
        "training.weight_decay=0.0",
        "method.rank=8",
        "method.clip=0.5",
        "method.warmup_steps=0",
    )
    setup, mechanism = prepared(figure_config("rgp_cifar10_eps8", scale, (*shape, *changes)), place)
    observer = LowRankObserver(rank=8, every=8)
    watch(setup, mechanism, [observer])
    return observer.reports


SETTINGS = "MLP 784-256-128-10 on 4,000 embedded images, 80 private steps of RGP, rank 8 (research mode)"


def _series(
    reports: list[LowRankReport], name: str, what: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    points = [
        (float(r.step), getattr(r, what)) for r in reports if r.name == name and getattr(r, what) is not None
    ]
    return tuple(x for x, _ in points), tuple(y for _, y in points)


def figure2(scale: Scale, place: Place) -> Finding:
    reports = _reports(scale, place)
    names = sorted({report.name for report in reports})
    curves = [
        Curve(label=name, x=x, y=y) for name in names for x, y in (_series(reports, name, "stable_rank"),)
    ]
    rows = tuple(
        Row(label=curve.label, ours=round(mean_of(curve.y), 2), theirs=10.0, note="theirs: below")
        for curve in curves
    )
    low = all(row.ours < 10 for row in rows)
    return Finding(
        rows=rows,
        verdict="holds" if low else "does not hold",
        why="every matrix has a low stable rank throughout" if low else "not low",
        unit="stable rank of the batch gradient",
        settings=f"{SETTINGS}, ε = 8",
        pictures=(Picture(x="step", y="stable rank", curves=tuple(curves)),),
    )


def figure3(scale: Scale, place: Place) -> Finding:
    rows, pictures = [], []
    for said, changes in (("ε = 8", ()), ("no noise", ("privacy.noise_multiplier=0.0",))):
        reports = _reports(scale, place, *changes)
        name = reports[0].name
        curves = []
        for what, label in (
            ("self_residual", "own directions"),
            ("historical_residual", "those of 8 steps before"),
            ("carrier_residual", "RGP's carriers"),
        ):
            x, y = _series(reports, name, what)
            curves.append(Curve(label=label, x=x, y=y))
            rows.append(Row(label=f"{said}: {label}", ours=round(mean_of(y[1:]), 3)))
        pictures.append(Picture(title=said, x="step", y="residual", curves=tuple(curves)))
    own, before, carriers = (row.ours for row in rows[:3])
    return Finding(
        rows=tuple(rows),
        verdict="holds in part" if carriers > before + 0.2 else "holds",
        why=f"the last gradient's subspace is nearly as good as the own one ({before:.2f} against {own:.2f}), but the "
        f"historical update that RGP decomposes misses {carriers:.0%} at ε = 8",
        unit="projection residual at rank 8, first matrix",
        settings=SETTINGS,
        pictures=tuple(pictures),
    )


def table5(scale: Scale, place: Place) -> Finding:
    """Success of a loss threshold chosen on one half and judged on the other."""
    rows = []
    shape = (
        "data.name=embedded",
        "data.private=1500",
        "data.test=1500",
        "model.name=mlp",
        "model.hidden=[512, 256]",
        "training.batch=100",
        "training.momentum=0.0",
        "training.schedule=constant",
        "training.weight_decay=0.0",
        "method.warmup_steps=0",
    )
    for label, theirs, changes in (
        (
            "Full (N.P.)",
            58.1,
            (
                "method.name=dp_sgd",
                "method.clip=1e6",
                "privacy.noise_multiplier=0.0",
                "training.lr=0.1",
                "training.epochs=60",
            ),
        ),
        (
            "RGP (N.P.)",
            53.3,
            (
                "method.rank=8",
                "method.clip=1e6",
                "privacy.noise_multiplier=0.0",
                "training.lr=0.1",
                "training.epochs=60",
            ),
        ),
        ("RGP (ε = 8)", 50.3, ("method.rank=8", "method.clip=0.5", "training.lr=2.0", "training.epochs=20")),
    ):
        own = shape if label.startswith("RGP") else tuple(c for c in shape if "warmup_steps" not in c)
        setup, mechanism = prepared(figure_config("rgp_cifar10_eps8", scale, (*own, *changes)), place)
        watch(setup, mechanism, [])
        inside, outside = (
            losses(setup.model, *data.tensors) for data in (setup.parts.private, setup.parts.test)
        )
        judged = (len(inside) + len(outside)) // 2
        rows.append(
            Row(
                label=label,
                theirs=theirs,
                ours=round(100 * threshold_success(inside, outside), 1),
                spread=round(50 / judged**0.5, 1),
            )
        )
    claims = [Order("Full (N.P.)", "RGP (N.P.)"), Order("RGP (N.P.)", "RGP (ε = 8)")]
    verdict, why = judge_statement(rows, claims)
    return Finding(
        rows=tuple(rows),
        verdict=verdict,
        why=why,
        unit="success of the attack, % (50: no better than chance)",
        settings="MLP 784-512-256-10, 1,500 embedded records, as many tests, a loss threshold found on one half and "
        "judged on the other, one seed",
    )


@torch.no_grad()
def losses(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), labels, reduction="none")


def threshold_success(inside: Tensor, outside: Tensor) -> float:
    """Balanced accuracy on odd records of the threshold that is best on even ones."""
    grid = torch.cat([inside[::2], outside[::2]]).unique()
    scores = [(_right(inside[::2], outside[::2], float(t)), float(t)) for t in grid]
    return _right(inside[1::2], outside[1::2], max(scores)[1])


def _right(inside: Tensor, outside: Tensor, threshold: float) -> float:
    return (float((inside <= threshold).float().mean()) + float((outside > threshold).float().mean())) / 2


COMPUTED: Mapping[str, Experiment] = {
    "table5": Computed(make=table5, minutes={"quick": 1.0}),
    "figure2": Computed(make=figure2, minutes={"quick": 0.4}),
    "figure3": Computed(make=figure3, minutes={"quick": 0.8}),
}

"""PDP-SGD's figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch

from quietgrad._gradients.blocks import Blocks, flatten
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.research import Observer
from quietgrad._representations.base import Public
from quietgrad.lab.diagnostics.subspace import EigenvalueSpectrum
from quietgrad.lab.papers.experiment import Computed, Experiment, Place
from quietgrad.lab.papers.finding import Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.trainings import Cell, Plan, Trainings
from quietgrad.lab.papers.verdicts import Order
from quietgrad.lab.papers.watched import as_curves, figure_config, prepared, watch

MNIST, FASHION = "pdp_sgd_mnist_sigma10", "pdp_sgd_fashion_mnist_sigma10"


def _dp(label: str, sigma: float, *changes: str, config: str = MNIST, lr: float = 0.05) -> Cell:
    own = ("method.name=dp_sgd", "method.clip=1.0", f"training.lr={lr}", f"privacy.noise_multiplier={sigma}")
    return Cell(label=label, config=config, changes=(*own, *changes))


def _pdp(label: str, sigma: float, *changes: str, config: str = MNIST, lr: float = 0.2) -> Cell:
    own = ("method.refresh_every=4", f"training.lr={lr}", f"privacy.noise_multiplier={sigma}")
    return Cell(label=label, config=config, changes=(*own, *changes))


def _random(label: str, sigma: float, *changes: str, config: str = MNIST, lr: float = 0.05) -> Cell:
    own = (
        "method.name=rpdp_sgd",
        "method.rank=800",
        "method.clip=1.0",
        "method.refresh_every=100",
        f"training.lr={lr}",
        f"privacy.noise_multiplier={sigma}",
    )
    return Cell(label=label, config=config, changes=(*own, *changes))


PAPER = "26k CNN, 10,000 private and 100 labelled public records, 1,200 steps of 250, C = 1, subspace every 4 steps"


def _plans(cells: tuple[Cell, ...], *, said: str = "MNIST", quick: bool = True) -> Mapping[Scale, Plan]:
    """The embedded images; an eighth of the steps; the paper's plan."""
    embedded = (
        "data.name=embedded",
        "data.private=3000",
        "data.test=1000",
        "data.public=100",
        "training.epochs=4",
    )
    smoke = Plan(
        changes=embedded, said="3,000 embedded Fashion-MNIST images, 26k CNN, 48 steps of 250, one seed"
    )
    plans: dict[Scale, Plan] = {"quick": smoke} if quick else {}
    plans["reduced"] = Plan(
        changes=("data.test=2000",),
        cells=tuple(_shortened(cell) for cell in cells),
        said=f"{said}, 26k CNN, 10,000 private and 100 labelled public records unless said, C = 1, an eighth of the "
        "paper's steps with σ/√8 and eight times the learning rate, which gives about the same ε and the same noise in "
        "the weights; subspace every 8 steps unless said, one seed (± is what three seeds of figure 3 differ by), "
        "nothing tuned, 2,000 test images",
        seed_spread=2.4,
    )
    plans["full"] = Plan(seeds=3, factors=(0.25, 0.5, 1.0, 2.0), said=f"{said}, {PAPER}")
    return plans


def _shortened(cell: Cell) -> Cell:
    """T/8 steps of 8η with σ/√8: (8η)²·(T/8)·σ²/8 = η²Tσ², and ε depends on √T/σ."""
    numbers = dict(change.split("=", 1) for change in cell.changes)
    numbers["training.epochs"] = f"{int(numbers.get('training.epochs', '30')) / 8:g}"
    numbers["training.lr"] = f"{8 * float(numbers['training.lr']):g}"
    numbers["privacy.noise_multiplier"] = f"{float(numbers['privacy.noise_multiplier']) / math.sqrt(8):.4g}"
    if numbers.get("method.refresh_every") == "4":
        numbers["method.refresh_every"] = "8"
    if cell.config == FASHION and "method.name" not in numbers:
        numbers["method.start_step"] = "70"
    return dataclasses.replace(cell, changes=tuple(f"{key}={value}" for key, value in numbers.items()))


def _figure(
    cells: tuple[Cell, ...], claims: tuple[Order, ...], *, quick: bool = True, **options: Any
) -> Trainings:
    return Trainings(cells=cells, plans=_plans(cells, quick=quick, **options), claims=claims, curves=True)


SIGMAS = (18, 10, 4)
THREE = (("DP-SGD", _dp), ("PDP-SGD", _pdp), ("RPDP-SGD", _random))
_CELLS3 = tuple(make(f"{name}, σ = {sigma}", sigma) for sigma in SIGMAS for name, make in THREE)
FIGURE3 = Trainings(
    cells=_CELLS3,
    plans=_plans(_CELLS3),
    claims=(
        Order("PDP-SGD, σ = 18", "DP-SGD, σ = 18"),
        Order("PDP-SGD, σ = 10", "DP-SGD, σ = 10"),
        Order("DP-SGD, σ = 4", "PDP-SGD, σ = 4"),
        Order("DP-SGD, σ = 4", "RPDP-SGD, σ = 4"),
    ),
    x={f"{name}, σ = {s}": (name, 1.0 / s) for name in ("DP-SGD", "PDP-SGD", "RPDP-SGD") for s in SIGMAS},
    x_label="1/σ",
)
FIGURE4 = _figure((_dp("DP-SGD", 18), _pdp("PDP-SGD", 18)), (Order("PDP-SGD", "DP-SGD"),))
FIGURE5 = _figure(
    (
        *(_pdp(f"k = {k}", 18, f"method.rank={k}") for k in (10, 50)),
        *(_pdp(f"m = {m}", 18, f"data.public={m}") for m in (60, 150)),
    ),
    (Order("k = 50", "k = 10"), Order("m = 150", "m = 60")),
)
FIGURE6 = _figure(
    (_dp("DP-SGD", 18), *(_pdp(f"s = {s}", 18, f"method.refresh_every={s}") for s in (5, 20))),
    (Order("s = 20", "DP-SGD"), Order("s = 5", "s = 20")),
)
FIGURE7 = _figure(
    tuple(make(f"{name}, σ = {s}", s) for s in (18, 14, 10) for name, make in THREE[:2]),
    tuple(Order(f"PDP-SGD, σ = {s}", f"DP-SGD, σ = {s}") for s in (18, 14, 10)),
)
FIGURE8 = _figure(
    tuple(
        make(f"{name}, σ = {s}", s, config=FASHION, lr=0.01 if s > 10 else 0.02)
        for s in (18, 10)
        for name, make in THREE[:2]
    ),
    tuple(Order(f"PDP-SGD, σ = {s}", f"DP-SGD, σ = {s}") for s in (18, 10)),
    said="Fashion-MNIST, projection from the middle on",
    quick=False,
)
FIGURE9 = _figure(
    tuple(_pdp(f"k = {k}", 14, f"method.rank={k}") for k in (10, 50)), (Order("k = 50", "k = 10"),)
)
FIGURE10 = _figure(
    tuple(_pdp(f"m = {m}", 14, f"data.public={m}") for m in (60, 150)), (Order("m = 150", "m = 60"),)
)
FIGURE11 = _figure(
    tuple(_pdp(f"m = {m}", 18, f"data.public={m}") for m in (60, 150, 200)),
    (Order("m = 150", "m = 60"), Order("m = 200", "m = 60")),
)
MORE = ("data.private=20000", "training.epochs=15")
FIGURE12 = _figure(
    (_dp("DP-SGD", 18, *MORE), _pdp("PDP-SGD", 18, *MORE)),
    (Order("PDP-SGD", "DP-SGD"),),
    said="MNIST with 20,000 private records",
    quick=False,
)
MOST = ("data.private=50000", "training.epochs=6")
FIGURE13 = _figure(
    tuple(_pdp(f"s = {s}", 18, f"method.refresh_every={s}", *MOST) for s in (5, 20)),
    (Order("s = 5", "s = 20"),),
    said="MNIST with 50,000 private records",
    quick=False,
)


def figure1(scale: Scale, place: Place) -> Finding:
    config = figure_config(MNIST, scale, ("model.name=mlp", "model.hidden=[128, 128]", "training.epochs=3"))
    setup, mechanism = prepared(config, place)
    spectrum = EigenvalueSpectrum(steps=(0, 15, 40), largest=100)
    watch(setup, mechanism, [spectrum])
    curves = as_curves(spectrum.curves())
    rows = tuple(
        Row(label=f"{curve.label}: share of the ten largest", ours=round(sum(curve.y[:10]) / sum(curve.y), 3))
        for curve in curves
    )
    dominant = all(row.ours > 0.5 for row in rows)
    return Finding(
        rows=rows,
        verdict="confirmed" if dominant else "weaker",
        why="ten of 250 directions hold most of the energy throughout"
        if dominant
        else "they hold less than half",
        unit="share of Σλ",
        settings="MLP with two hidden layers of 128, 4,000 embedded images, 48 private steps, σ = 10 (research mode)",
        pictures=(Picture(x="order", y="eigenvalue", curves=curves, log_y=True),),
    )


class SortedGradient(Observer):
    """|Σ_i g_i| sorted, at chosen steps."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps, self.found = steps, dict[int, torch.Tensor]()
        self._sum: torch.Tensor | None = None

    def micro_batch(self, grads: PerSampleGrads, public: Public, mechanism: Mechanism) -> None:
        part = flatten(grads.weighted_sum(torch.ones(grads.samples))).double()
        self._sum = part if self._sum is None else self._sum + part

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        if step in self.steps and self._sum is not None:
            self.found[step] = self._sum.abs().sort(descending=True).values
        self._sum = None


def figure2(scale: Scale, place: Place) -> Finding:
    """|m(j)| against j; the theory needs e(j) ≤ c/√j."""
    config = figure_config(
        MNIST,
        scale,
        (
            "model.name=mlp",
            "model.hidden=[128, 128]",
            "training.epochs=1",
            "training.batch=1000",
            "method.name=dp_sgd",
            "privacy.noise_multiplier=2.0",
            "training.lr=0.5",
        ),
    )
    setup, mechanism = prepared(config, place)
    observer = SortedGradient(steps=(0, 3))
    watch(setup, mechanism, [observer])
    rows, curves = [], []
    for step, values in observer.found.items():
        places = torch.logspace(0, 4, 30).long().unique()
        y = values[places - 1] / values[0]
        curves.append(Curve(label=f"step {step}", x=tuple(places.tolist()), y=tuple(y.tolist())))
        exponent = torch.log(values[9] / values[9_999]) / torch.log(torch.tensor(1000.0))
        rows.append(
            Row(
                label=f"step {step}: exponent of the decay",
                ours=round(float(exponent), 2),
                theirs=0.5,
                note="theirs: at least",
            )
        )
    fast = all(row.ours >= 0.5 for row in rows)
    return Finding(
        rows=tuple(rows),
        verdict="confirmed" if fast else "weaker",
        why="between the 10th and the 10,000th coordinate they fall at least like 1/√j"
        if fast
        else "they fall more slowly than 1/√j between the 10th and the 10,000th",
        unit="−d log|m(j)|/d log j",
        settings="MLP with two hidden layers of 128, batches of 1,000 embedded images, DP-SGD at σ = 2 (research mode)",
        pictures=(
            Picture(
                x="order",
                y="|m(j)|/|m(1)|",
                curves=tuple(curves),
                log_x=True,
                log_y=True,
            ),
        ),
    )


EXPERIMENTS: Mapping[str, Experiment] = {
    "figure1": Computed(make=figure1, minutes={"quick": 0.5}),
    "figure2": Computed(make=figure2, minutes={"quick": 0.2}),
    "figure3": FIGURE3,
    "figure4": FIGURE4,
    "figure5": FIGURE5,
    "figure6": FIGURE6,
    "figure7": FIGURE7,
    "figure8": FIGURE8,
    "figure9": FIGURE9,
    "figure10": FIGURE10,
    "figure11": FIGURE11,
    "figure12": FIGURE12,
    "figure13": FIGURE13,
}

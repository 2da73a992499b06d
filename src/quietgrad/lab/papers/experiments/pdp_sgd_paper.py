"""PDP-SGD's figures."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from quietgrad.gradients.blocks import Blocks, flatten
from quietgrad.gradients.stages import PerSampleGrads, Released
from quietgrad.lab.diagnostics.subspace import EigenvalueSpectrum
from quietgrad.lab.papers.experiment import Computed, Experiment, Place
from quietgrad.lab.papers.finding import Curve, Finding, Order, Picture, Row, Scale
from quietgrad.lab.papers.trainings import Cell, Plan, Trainings
from quietgrad.lab.papers.watched import as_curves, figure_config, prepared, watch
from quietgrad.mechanism.mechanism import Mechanism
from quietgrad.privatizer.research import Observer
from quietgrad.representations.public import Public

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


def _plans(*changes: str, seeds: int = 1, said: str = "MNIST") -> Mapping[Scale, Plan]:
    quick = (
        "data.name=embedded",
        "data.private=3000",
        "data.test=1000",
        "data.public=100",
        "training.epochs=4",
    )
    paper = f"{said}, 26k CNN, 10,000 private and 100 labelled public records, 1,200 steps of 250, C = 1"
    return {
        "quick": Plan(
            changes=quick, said="3,000 embedded Fashion-MNIST images, 26k CNN, 48 steps of 250, one seed"
        ),
        "reduced": Plan(
            changes=("data.test=5000", *changes),
            seeds=seeds,
            said=f"{paper}, subspace every 4 steps, one seed and learning rate, 5,000 test images",
        ),
        "full": Plan(
            changes=changes, seeds=3, factors=(0.25, 0.5, 1.0, 2.0), said=f"{paper}, subspace every 4 steps"
        ),
    }


SIGMAS = (18, 10, 4)
FIGURE3 = Trainings(
    cells=tuple(
        make(f"{name}, σ = {sigma}", sigma)
        for sigma in SIGMAS
        for name, make in (("DP-SGD", _dp), ("PDP-SGD", _pdp), ("RPDP-SGD", _random))
    ),
    plans=_plans(),
    claims=(
        Order("PDP-SGD, σ = 18", "DP-SGD, σ = 18"),
        Order("DP-SGD, σ = 4", "PDP-SGD, σ = 4"),
        Order("DP-SGD, σ = 4", "RPDP-SGD, σ = 4"),
    ),
    x={f"{name}, σ = {s}": (name, 1.0 / s) for name in ("DP-SGD", "PDP-SGD", "RPDP-SGD") for s in SIGMAS},
    x_label="1/σ",
)
FIGURE4 = Trainings(
    cells=(_dp("DP-SGD", 18), _pdp("PDP-SGD", 18)),
    plans=_plans(),
    claims=(Order("PDP-SGD", "DP-SGD"),),
    curves=True,
)
FIGURE5 = Trainings(
    cells=tuple(
        [_pdp(f"k = {k}", 18, f"method.rank={k}") for k in (10, 20, 50)]
        + [_pdp(f"m = {m}", 18, f"data.public={m}") for m in (60, 150)]
    ),
    plans=_plans(),
    claims=(Order("k = 50", "k = 10"), Order("m = 150", "m = 60")),
    curves=True,
)
FIGURE6 = Trainings(
    cells=(_dp("DP-SGD", 18), *(_pdp(f"s = {s}", 18, f"method.refresh_every={s}") for s in (2, 10, 20))),
    plans=_plans(),
    claims=(Order("s = 20", "DP-SGD"), Order("s = 2", "s = 20")),
    curves=True,
)
FIGURE7 = Trainings(
    cells=tuple(
        make(f"{name}, σ = {s}", s)
        for s in (18, 14, 10)
        for name, make in (("DP-SGD", _dp), ("PDP-SGD", _pdp))
    ),
    plans=_plans(),
    claims=tuple(Order(f"PDP-SGD, σ = {s}", f"DP-SGD, σ = {s}") for s in (18, 14, 10)),
    curves=True,
)
_FASHION_PLANS: Mapping[Scale, Plan] = {
    scale: plan
    for scale, plan in _plans(said="Fashion-MNIST, projection from epoch 15 on").items()
    if scale != "quick"
}
FIGURE8 = Trainings(
    cells=tuple(
        cell
        for s in (18, 10)
        for cell in (
            _dp(f"DP-SGD, σ = {s}", s, config=FASHION, lr=0.01 if s > 10 else 0.02),
            _pdp(f"PDP-SGD, σ = {s}", s, config=FASHION, lr=0.01 if s > 10 else 0.02),
        )
    ),
    plans=_FASHION_PLANS,
    claims=tuple(Order(f"PDP-SGD, σ = {s}", f"DP-SGD, σ = {s}") for s in (18, 10)),
    curves=True,
)
FIGURE9 = Trainings(
    cells=tuple(_pdp(f"k = {k}", 14, f"method.rank={k}") for k in (10, 20, 50)),
    plans=_plans(),
    claims=(Order("k = 50", "k = 10"),),
    curves=True,
)
FIGURE10 = Trainings(
    cells=tuple(_pdp(f"m = {m}", 14, f"data.public={m}") for m in (60, 100, 150)),
    plans=_plans(),
    claims=(Order("m = 150", "m = 60"),),
    curves=True,
)
FIGURE11 = Trainings(
    cells=tuple(_pdp(f"m = {m}", 18, f"data.public={m}") for m in (60, 150, 200)),
    plans=_plans(),
    claims=(Order("m = 150", "m = 60"), Order("m = 200", "m = 60")),
    curves=True,
)
MORE = ("data.private=20000", "training.epochs=15")
FIGURE12 = Trainings(
    cells=(_dp("DP-SGD", 18, *MORE), _pdp("PDP-SGD", 18, *MORE)),
    plans={s: p for s, p in _plans().items() if s != "quick"},
    claims=(Order("PDP-SGD", "DP-SGD"),),
    curves=True,
)
FIGURE13 = Trainings(
    cells=tuple(
        _pdp(f"s = {s}", 18, f"method.refresh_every={s}", "data.private=50000", "training.epochs=6")
        for s in (2, 20)
    ),
    plans={s: p for s, p in _plans().items() if s != "quick"},
    claims=(Order("s = 2", "s = 20"),),
    curves=True,
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
        pictures=(Picture(title="PDP-SGD, figure 1", x="order", y="eigenvalue", curves=curves, log_y=True),),
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
                title="PDP-SGD, figure 2",
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

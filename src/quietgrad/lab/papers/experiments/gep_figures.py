"""GEP's tables and figures that are computed, not trained: costs, lengths, stable ranks, projection errors, PATE."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F

import quietgrad as qg
from quietgrad.lab.diagnostics.subspace import ProjectionError, StableRanks
from quietgrad.lab.models import build
from quietgrad.lab.papers.experiment import Computed, Experiment, Place
from quietgrad.lab.papers.finding import Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.pate import Pate, train_pate
from quietgrad.lab.papers.watched import as_curves, figure_config, mean_of, prepared, watch
from quietgrad.lab.run.config import load_config
from quietgrad.lab.run.task import load_task

GROUPS = ("method.groups=modules",)
WATCHED = "gep_cnn on 4,000 embedded images, batch 250, 12 private steps at ε = 2, 100 public images (research mode)"


def table4(_scale: Scale, _place: Place) -> Finding:
    """Time of 2mkp + pk² operations in one group and in g groups."""
    m, k, p = 200, 100, 120_000
    gradients = torch.randn(m, p)

    def seconds(groups: int) -> float:
        started = time.perf_counter()
        for part in gradients.chunk(groups, dim=1):
            start = torch.randn(k // groups, part.shape[1])
            torch.linalg.qr(((part @ start.T).T @ part).T)
        return time.perf_counter() - started

    seconds(1)
    rows = [
        Row(
            label=f"{g} group{'s' if g > 1 else ''}",
            theirs=round((2 * m * k * p / g + p * k**2 / g**2) / (2 * m * k * p + p * k**2), 3),
            ours=round(min(seconds(g) for _ in range(3)) / min(seconds(1) for _ in range(3)), 3),
        )
        for g in (1, 2, 5)
    ]
    falls = rows[0].ours > rows[1].ours > rows[2].ours
    return Finding(
        rows=tuple(rows),
        verdict="holds" if falls else "does not hold",
        why="grouping saves about what the operations say" if falls else "grouping does not save time here",
        unit="cost of a basis over that of one group",
        settings=f"m = {m}, k = {k}, p = {p:,}; theirs: operations, ours: seconds",
    )


def figure1(_scale: Scale, _place: Place) -> Finding:
    """Length of the gradient of a batch and of its noise, ResNet20 at initialisation."""
    torch.manual_seed(0)
    model = build("resnet20", (3, 32, 32), 10)
    p = sum(w.numel() for w in model.parameters())
    rate, batch = 0.01, 500
    batches = qg.PoissonBatches(torch.utils.data.TensorDataset(torch.zeros(1)), rate=rate, steps=9_000)
    sigma = qg.calibrate(qg.methods.dp_sgd(), batches, epsilon=5.0, delta=1e-5).noise_multiplier or 0.0
    x, y = torch.randn(64, 3, 32, 32), torch.randint(10, (64,))
    F.cross_entropy(model(x), y).backward()
    gradient = math.sqrt(sum(float(w.grad.square().sum()) for w in model.parameters() if w.grad is not None))
    noise = sigma * math.sqrt(p) / batch
    return Finding(
        rows=(
            Row(label="gradient", ours=round(gradient, 3)),
            Row(label="noise at C = 1", ours=round(noise, 3)),
            Row(label="noise over a clipped gradient", ours=round(noise / min(1.0, gradient), 2)),
        ),
        verdict="holds" if noise > 3 * min(1.0, gradient) else "holds in part",
        why=f"noise is {noise / min(1.0, gradient):.1f} times as long as the longest gradient that a clip of 1 lets by",
        unit="Euclidean length",
        settings=f"ResNet20 ({p:,} parameters), random images, ε = 5 in 90 epochs of batch {batch}: σ = {sigma:.2f}",
    )


def _observed_ranks(scale: Scale, place: Place) -> StableRanks:
    config = figure_config(
        "gep_mnist_eps2", scale, ("data.public=100", "data.public_from=", "method.rank=40", *GROUPS)
    )
    setup, mechanism = prepared(config, place)
    ranks = StableRanks(mechanism)
    watch(setup, mechanism, [ranks], steps=12)
    return ranks


def figure2(scale: Scale, place: Place) -> Finding:
    found = _observed_ranks(scale, place).curves()
    gradients = {name: curve for name, curve in found.items() if name.endswith("gradients")}
    rows = tuple(
        Row(label=f"layer {name}", ours=round(mean_of(y), 2), note=f"of at most {250}")
        for name, (_, y) in gradients.items()
    )
    low = all(row.ours < 25 for row in rows)
    return Finding(
        rows=rows,
        verdict="holds" if low else "holds in part",
        why="every group's stable rank is below a tenth of the batch" if low else "not low in every group",
        unit="stable rank, mean over steps",
        settings=WATCHED,
        pictures=(Picture(x="step", y="stable rank", curves=as_curves(gradients, "layer ")),),
    )


def figure5(scale: Scale, place: Place) -> Finding:
    found = _observed_ranks(scale, place).curves()
    names = sorted({name.rsplit(":", 1)[0] for name in found})
    rows = tuple(
        Row(
            label=f"layer {name}: residual over gradient",
            ours=round(mean_of(found[f"{name}: residuals"][1]) / mean_of(found[f"{name}: gradients"][1]), 2),
            theirs=10.0,
        )
        for name in names
    )
    tenfold, above = all(row.ours >= 5 for row in rows), all(row.ours > 1 for row in rows)
    return Finding(
        rows=rows,
        verdict="holds" if tenfold else "holds in part" if above else "does not hold",
        why="an order of magnitude"
        if tenfold
        else f"above that of the gradients {min(row.ours for row in rows):.1f} to {max(row.ours for row in rows):.1f} "
        "times, not tenfold; 40 directions of 100 public images take part of the spectrum away",
        unit="ratio of stable ranks",
        settings=WATCHED,
        pictures=(
            Picture(
                x="step",
                y="stable rank",
                curves=as_curves(found, "layer "),
                log_y=True,
            ),
        ),
    )


def _projection_error(scale: Scale, place: Place, *changes: str) -> tuple[float, Curve]:
    config = figure_config("gep_mnist_eps2", scale, ("data.public_from=", *FEW[scale], *changes))
    setup, mechanism = prepared(config, place)
    error = ProjectionError(mechanism)
    watch(setup, mechanism, [error], steps=10)
    x, y = error.curves()["all"]
    return mean_of(y), Curve(label=" ".join(changes), x=tuple(x), y=tuple(y))


FEW: dict[Scale, tuple[str, ...]] = {
    "quick": (),
    "reduced": ("data.private=4000", "data.test=500", "training.batch=250"),
}
RANKS = (10, 40, 100)
ANCHORS = {
    "own images, random labels": (),
    "own images, true labels": ("data.public_labels=true",),
    "other images, random labels": ("data.public_from=fashion-mnist",),
}


def figure4(scale: Scale, place: Place) -> Finding:
    """Anchors of the private data's kind, and at reduced scale of another kind too."""
    kinds = list(ANCHORS)[: 2 if scale == "quick" else 3]
    found = {
        (kind, k): _projection_error(scale, place, "data.public=120", f"method.rank={k}", *ANCHORS[kind])
        for kind in kinds
        for k in RANKS
    }
    falls = all(found[kind, a][0] > found[kind, b][0] for kind in kinds for a, b in itertools.pairwise(RANKS))
    least = {kind: found[kind, RANKS[-1]][0] for kind in kinds}
    comparable = max(least.values()) < 2 * least["own images, true labels"]
    said = "; ".join(f"{kind} {lost:.0%}" for kind, lost in least.items())
    return Finding(
        rows=tuple(
            Row(label=f"k = {k}, {kind}", ours=round(mean, 3)) for (kind, k), (mean, _) in found.items()
        ),
        verdict="does not hold" if not falls else "holds" if comparable else "holds in part",
        why=f"{'falls' if falls else 'does not fall'} with k; lost at k = {RANKS[-1]}: {said}",
        unit="‖Σr‖/‖Σg‖, mean over steps",
        settings=_watched(scale, "120 public images"),
        pictures=tuple(
            Picture(
                title=kind,
                x="step",
                y="projection error",
                curves=tuple(
                    Curve(label=f"k = {k}", x=found[kind, k][1].x, y=found[kind, k][1].y) for k in RANKS
                ),
            )
            for kind in kinds
        ),
    )


def _watched(scale: Scale, directions: str) -> str:
    images = "4,000 embedded" if scale == "quick" else "4,000 MNIST"
    others = "" if scale == "quick" else ", Fashion-MNIST's for other images"
    return f"gep_cnn on {images} images, batch 250, 10 private steps at ε = 2, {directions}{others} (research mode)"


def figure7(scale: Scale, place: Place) -> Finding:
    rows, curves = [], []
    for k in RANKS:
        changes = ("data.public=100", f"method.rank={k}", "method.basis=random")
        mean, curve = _projection_error(scale, place, *changes)
        rows.append(Row(label=f"k = {k}", ours=round(mean, 4), theirs=0.95, note="theirs: above"))
        curves.append(Curve(label=f"k = {k}", x=curve.x, y=curve.y))
    high = all(row.ours > 0.95 for row in rows)
    return Finding(
        rows=tuple(rows),
        verdict="holds" if high else "does not hold",
        why="random directions miss more than 95% of the gradient, as √(1 − k/p) says",
        unit="‖Σr‖/‖Σg‖, mean over steps",
        settings=_watched("quick", "random directions"),
        pictures=(Picture(x="step", y="projection error", curves=tuple(curves)),),
    )


def pate(scale: Scale, place: Place) -> Finding:
    """Linear teachers on the embedded images, or the paper's network on MNIST."""
    quick_changes = ("data.name=embedded", "data.public=200", "data.public_from=", "model.name=linear")
    changes = quick_changes if scale == "quick" else ("data.public=200", "data.public_from=")
    config = load_config(Path("gep_mnist_eps2"), list(changes))
    parts = load_task(config, data_dir=place.data_dir)
    plan = Pate(teachers=100 if scale == "quick" else 250, queries=100, noise=28.0, steps=150)
    torch.manual_seed(0)
    found = train_pate(
        parts,
        plan,
        lambda: build(config.model.name, parts.input_shape, parts.num_classes, **config.model.options),
    )
    above = 100 * found.accuracy >= 94.7
    return Finding(
        rows=(
            Row(
                label="student",
                theirs=98.5,
                ours=round(100 * found.accuracy, 1),
                note=f"ε = {found.epsilon:.3g}",
            ),
            Row(label="a teacher", ours=round(100 * found.teacher, 1)),
            Row(label="labels that noise left as they were", ours=round(100 * found.agreement, 1)),
        ),
        verdict="holds" if above else "holds in part",
        why="above the paper's GP"
        if above
        else "an ordinary student of 100 labels; the paper's learns semi-supervised and "
        "its ε depends on data",
        unit="%",
        settings=f"{config.data.name}, {plan.teachers} teachers ({config.model.name}), {plan.queries} queries, σ = 28",
    )


COMPUTED: Mapping[str, Experiment] = {
    "pate": Computed(make=pate, minutes={"quick": 0.3, "reduced": 4.0}),
    "table4": Computed(make=table4, minutes={"quick": 0.1}),
    "figure1": Computed(make=figure1, minutes={"quick": 0.1}),
    "figure2": Computed(make=figure2, minutes={"quick": 0.5}),
    "figure4": Computed(make=figure4, minutes={"quick": 1.0, "reduced": 2.0}),
    "figure5": Computed(make=figure5, minutes={"quick": 0.5}),
    "figure7": Computed(make=figure7, minutes={"quick": 0.7}),
}

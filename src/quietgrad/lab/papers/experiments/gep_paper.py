"""GEP's tables of trainings, and the list of all its experiments."""

from __future__ import annotations

from collections.abc import Mapping

from quietgrad.lab.papers.experiment import Computed, Experiment
from quietgrad.lab.papers.experiments.cifar10_table import CIFAR10
from quietgrad.lab.papers.experiments.gep_figures import (
    figure1,
    figure2,
    figure4,
    figure5,
    figure7,
    pate,
    table4,
)
from quietgrad.lab.papers.finding import Scale
from quietgrad.lab.papers.quick import quick
from quietgrad.lab.papers.trainings import Cell, Plan, Trainings
from quietgrad.lab.papers.verdicts import Level, Order

SMALL = ("method.rank=50", "method.clip=1.0", "method.refresh_every=4")
TUNED = (
    "method.rank=200",
    "method.clip=1.0",
    "method.residual_clip=1.0",
    "method.split=energy",
    "method.refresh_every=4",
)


TABLE1_MNIST = {2: (94.7, 93.1, 96.3), 5: (96.8, 94.5, 97.9), 8: (97.2, 95.9, 98.4)}
"""ε → GP, B-GEP, GEP."""


def _mnist(own: tuple[str, ...], clip: str) -> tuple[Cell, ...]:
    """GP, B-GEP and GEP in one setting, at each ε; B-GEP has no residual options."""
    without = tuple(change for change in own if "residual" not in change and "split" not in change)
    changes = {"GP": ("method.name=dp_sgd", clip), "B-GEP": ("method.name=biased_gep", *without), "GEP": own}
    return tuple(
        Cell(
            label=f"{name}, ε = {epsilon}",
            config="gep_mnist_eps2",
            changes=(*changes[name], f"privacy.epsilon={epsilon}"),
            theirs=accuracy,
        )
        for epsilon, theirs in TABLE1_MNIST.items()
        for name, accuracy in zip(changes, theirs, strict=True)
    )


PUBLIC_100 = ("data.public=100", "data.public_from=mnist")
FASHION = (
    "data.name=fashion-mnist",
    "data.private=10000",
    *PUBLIC_100,
    "model.name=tanh_cnn",
    "training.batch=250",
    "training.epochs=3",
    "training.lr=1.0",
    "training.momentum=0.0",
    "training.weight_decay=0.0",
    "training.schedule=constant",
    "averaging.decay=0.0",
    "data.test=2000",
)
SAID_FASHION = (
    "Fashion-MNIST, 10,000 private records, 100 MNIST images as public ones unless said, 26k CNN, 120 steps of 250, "
    "S = (1, ½), basis every 4 steps, lr 1, one seed, 2,000 test images"
)

TABLE1 = Trainings(
    cells=_mnist(TUNED, "method.clip=1.0"),
    plans={
        "quick": Plan(
            changes=quick("data.public_from=", "data.public=200").changes,
            said=quick().said,
            cells=_mnist((*SMALL, "method.residual_clip=0.5"), "method.clip=1.0"),
        ),
        "reduced": Plan(
            changes=(
                "data.public=300",
                "model.name=tanh_cnn",
                "training.batch=600",
                "training.epochs=6",
                "training.lr=2.0",
                "training.momentum=0.0",
                "training.schedule=constant",
                "training.weight_decay=0.0",
            ),
            seeds=2,
            factors=(0.5, 1.0, 2.0),
            said="MNIST, 26k CNN, 300 Fashion-MNIST images with random labels, 600 steps of 600, k = 200, "
            "S = (1, 1), energy split, basis every 4 steps, lr 1, 2 and 4 tried for each method",
        ),
        "full": Plan(
            seeds=5,
            said="MNIST, the paper's config `gep_mnist_eps2`",
            cells=_mnist((), "method.clip=10.0"),
        ),
    },
    claims=tuple(
        Order(f"{above}, ε = {epsilon}", f"{below}, ε = {epsilon}")
        for epsilon in TABLE1_MNIST
        for above, below in (("GEP", "GP"), ("GEP", "B-GEP"), ("GP", "B-GEP"))
    ),
)


def _linear_head(label: str, theirs: float, changes: tuple[str, ...]) -> Cell:
    return Cell(label=label, config="gep_linear_cifar10_eps2", changes=changes, theirs=theirs)


TABLE3 = Trainings(
    cells=(
        _linear_head("GP", 93.4, ("method.name=dp_sgd", "method.clip=0.1")),
        _linear_head(
            "B-GEP",
            93.2,
            ("method.name=biased_gep", "method.rank=50", "method.clip=0.1", "method.refresh_every=10"),
        ),
        _linear_head("GEP", 94.8, ("method.rank=50", "method.refresh_every=10")),
    ),
    plans={
        "quick": Plan(
            changes=(
                "data.name=embedded",
                "data.private=6000",
                "data.public=200",
                "data.test=2000",
                "training.epochs=10",
                "training.batch=500",
            ),
            said="6,000 embedded Fashion-MNIST images, 200 public, ScatterNet's features in the place of SimCLR's, 120 "
            "steps of 500, ε = 2, k = 50, basis every 10 steps, Adam lr 0.01, one seed, untuned; theirs on CIFAR-10",
        ),
        "reduced": Plan(
            changes=("data.private=10000", "data.test=2000", "training.epochs=6", "training.batch=500"),
            said="CIFAR-10, ScatterNet's features in the place of SimCLR's, 10,000 private records, 500 public, "
            "120 steps of 500, k = 50, basis every 10 steps, Adam lr 0.01, one seed, 2,000 test images",
        ),
        "full": Plan(
            seeds=5, factors=(1.0, 5.0, 10.0), said="CIFAR-10, ScatterNet's features, the paper's grid"
        ),
    },
    claims=(Order("GEP", "GP"), Order("GEP", "B-GEP")),
)


def _gep(label: str, *changes: str, theirs: float | None = None, biased: bool = False) -> Cell:
    own = SMALL if biased else (*SMALL, "method.residual_clip=0.5")
    name = ("method.name=biased_gep",) if biased else ()
    return Cell(label=label, config="gep_mnist_eps2", changes=(*name, *own, *changes), theirs=theirs)


FASHION_PLANS: Mapping[Scale, Plan] = {
    "quick": Plan(changes=(*quick("data.public=100").changes, "data.public_from="), said=quick().said),
    "reduced": Plan(changes=FASHION, said=SAID_FASHION),
}
TABLE5 = Trainings(
    cells=(
        _gep("own images, true labels", "data.public_from=", "data.public_labels=true", theirs=72.9),
        _gep("own images, random labels", "data.public_from=", theirs=75.1),
        _gep("other images, random labels", theirs=74.8),
    ),
    plans={"reduced": FASHION_PLANS["reduced"]},
    claims=(
        Order("own images, random labels", "own images, true labels"),
        Order("own images, random labels", "other images, random labels"),
    ),
)
TABLE6 = Trainings(
    cells=tuple(
        _gep(f"{'B-GEP' if biased else 'GEP'}, m = {m}", f"data.public={m}", biased=biased, theirs=theirs)
        for biased, m, theirs in (
            (True, 50, 62.2),
            (True, 100, 62.6),
            (True, 200, 63.3),
            (False, 50, 74.6),
            (False, 100, 74.8),
            (False, 200, 75.2),
        )
    ),
    plans=FASHION_PLANS,
    claims=(
        Order("GEP, m = 200", "GEP, m = 50"),
        Order("B-GEP, m = 200", "B-GEP, m = 50"),
        Order("GEP, m = 200", "B-GEP, m = 200"),
    ),
)
SPLITS = Trainings(
    cells=(
        _gep("equal shares", theirs=None),
        _gep("least energy", "method.split=energy"),
        _gep("joint clip", "method.joint=true"),
        _gep("B-GEP", biased=True),
        Cell(label="GP", config="gep_mnist_eps2", changes=("method.name=dp_sgd", "method.clip=1.0")),
    ),
    plans=FASHION_PLANS,
    claims=(Order("equal shares", "B-GEP"), Order("equal shares", "least energy")),
)
RANKS = (10, 30, 90)
FIGURE6 = Trainings(
    cells=tuple(
        _gep(f"{'B-GEP' if biased else 'GEP'}, k = {k}", f"method.rank={k}", biased=biased)
        for biased in (True, False)
        for k in RANKS
    ),
    plans=FASHION_PLANS,
    claims=(
        *(Order(f"GEP, k = {k}", f"B-GEP, k = {k}") for k in RANKS),
        *(Level(f"GEP, k = {k}", f"GEP, k = {RANKS[-1]}") for k in RANKS[:-1]),
    ),
    x={f"{name}, k = {k}": (name, float(k)) for name in ("GEP", "B-GEP") for k in RANKS},
    x_label="k",
)


EXPERIMENTS: Mapping[str, Experiment] = {
    "pate": Computed(make=pate, minutes={"quick": 0.3, "reduced": 4.0}),
    "splits": SPLITS,
    "cifar10": CIFAR10,
    "table1": TABLE1,
    "table3": TABLE3,
    "table4": Computed(make=table4, minutes={"quick": 0.1}),
    "table5": TABLE5,
    "table6": TABLE6,
    "figure1": Computed(make=figure1, minutes={"quick": 0.1}),
    "figure2": Computed(make=figure2, minutes={"quick": 0.5}),
    "figure4": Computed(make=figure4, minutes={"quick": 1.0, "reduced": 2.0}),
    "figure5": Computed(make=figure5, minutes={"quick": 0.5}),
    "figure6": FIGURE6,
    "figure7": Computed(make=figure7, minutes={"quick": 0.7}),
}

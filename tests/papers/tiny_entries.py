"""Entries of a few small trainings in the place of the papers' own; as a program, the command line with them.

python -m tests.papers.tiny_entries papers gip table5 --scale quick --out FOLDER
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from quietgrad.lab.cli.app import app
from quietgrad.lab.papers.experiment import Experiment
from quietgrad.lab.papers.registry import EXPERIMENTS
from quietgrad.lab.papers.training_entries import trainings_of
from quietgrad.lab.papers.trainings import Cell, Trainings
from quietgrad.lab.papers.verdicts import Order

STEPS = 200
CHANGES = (
    "data.name=embedded",
    "data.private=400",
    "training.batch=10",
    "training.epochs=5",
    "method.name=dp_sgd",
    "method.clip=1.0",
    "model.name=linear",
)


def _cell(label: str, tests: int) -> Cell:
    return Cell(label=label, config="gip_mnist_eps2", changes=(*CHANGES, f"data.test={tests}"))


def _entry(*cells: Cell) -> Trainings:
    plan = dataclasses.replace(trainings_of("gip")["table5"].plans["quick"], cells=())
    claims = (Order(cells[0].label, cells[-1].label),)
    return Trainings(cells=cells, plans={"quick": plan}, claims=claims)


TINY: Mapping[tuple[str, str], Experiment] = {
    ("gip", "table5"): _entry(_cell("a", 100), _cell("b", 101)),
    ("gip", "figure4b"): _entry(_cell("b", 101), _cell("c", 102)),
    ("gip", "figure4d"): _entry(_cell("d", 103), _cell("e", 104)),
}
"""The first two share a training."""


def install(into: Mapping[str, Mapping[str, Experiment]] = EXPERIMENTS) -> None:
    """Put the entries where the catalogue's are."""
    for (paper, entry), experiment in TINY.items():
        into[paper][entry] = experiment  # type: ignore[index]  # a dictionary behind its read-only type


if __name__ == "__main__":
    install()
    app()

"""Short runs in research mode, for the papers' figures: observers read private gradients, so ε covers none of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import quietgrad as qg
from quietgrad.lab.diagnostics.subspace import Curves
from quietgrad.lab.papers.experiment import Place
from quietgrad.lab.papers.finding import Curve, Scale
from quietgrad.lab.run.config import Config, load_config
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.setup import Setup, set_up
from quietgrad.lab.run.train import losses_of

EMBEDDED = ("data.name=embedded", "data.test=500", "training.batch=250", "averaging.decay=0.0")
"""The data that come with the package."""


def figure_config(name: str, scale: Scale, changes: Sequence[str] = ()) -> Config:
    """The paper's config on the embedded data at quick scale, on its own data otherwise."""
    shared = [*EMBEDDED, "data.private=4000"] if scale == "quick" else ["averaging.decay=0.0"]
    return load_config(Path(name), [*shared, *changes])


def prepared(config: Config, place: Place) -> tuple[Setup, qg.Mechanism]:
    """The objects of a run, not started."""
    setup = set_up(config, data_dir=place.data_dir)
    return setup, build_mechanism(config.method, config.privacy, setup.parts, setup.model, setup.batches)


def watch(
    setup: Setup, mechanism: qg.Mechanism, observers: Sequence[qg.Observer], steps: int | None = None
) -> Setup:
    """Run the plan, or its first steps, with the observers."""
    with qg.Privatizer(setup.model, mechanism, setup.batches, research=True) as private:
        for observer in observers:
            private.watch(observer)
        for number, batch in enumerate(setup.batches, start=1):
            for x, y in batch.split(setup.config.training.micro_batch):
                private.backward(losses_of(setup.model, x, y, setup.config))
            private.release()
            setup.update()
            if number == steps:
                break
    return setup


def as_curves(found: Curves, prefix: str = "") -> tuple[Curve, ...]:
    """A diagnostic's curves for a picture."""
    return tuple(Curve(label=f"{prefix}{label}", x=tuple(x), y=tuple(y)) for label, (x, y) in found.items())


def mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)

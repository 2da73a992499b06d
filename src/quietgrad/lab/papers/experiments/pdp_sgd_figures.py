"""PDP-SGD's figures."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks, flatten
from quietgrad.lab.diagnostics.subspace import EigenvalueSpectrum
from quietgrad.lab.papers.experiment import Computed, Experiment, Place
from quietgrad.lab.papers.finding import Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.watched import as_curves, figure_config, prepared, watch

MNIST = "pdp_sgd_mnist_sigma10"


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
        verdict="holds" if dominant else "holds in part",
        why="ten of 250 directions hold most of the energy throughout"
        if dominant
        else "they hold less than half",
        unit="share of Σλ",
        settings="MLP with two hidden layers of 128, 4,000 embedded images, 48 private steps, σ = 10 (research mode)",
        pictures=(Picture(x="order", y="eigenvalue", curves=curves, log_y=True),),
    )


class SortedGradient(qg.Observer):
    """|Σ_i g_i| sorted, at chosen steps."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps, self.found = steps, dict[int, torch.Tensor]()
        self._sum: torch.Tensor | None = None

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        part = flatten(grads.weighted_sum(torch.ones(grads.samples))).double()
        self._sum = part if self._sum is None else self._sum + part

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
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
        verdict="holds" if fast else "holds in part",
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


COMPUTED: Mapping[str, Experiment] = {
    "figure1": Computed(make=figure1, minutes={"quick": 0.5}),
    "figure2": Computed(make=figure2, minutes={"quick": 0.2}),
}

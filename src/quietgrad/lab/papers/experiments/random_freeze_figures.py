"""Random Freeze's tables and figures."""

from __future__ import annotations

from collections.abc import Mapping

import torch

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks, flatten_rows
from quietgrad.lab.diagnostics.sparse import EncodedNorms, FreezeCounts
from quietgrad.lab.papers.experiment import Computed, Experiment, Place
from quietgrad.lab.papers.finding import Curve, Finding, Picture, Row, Scale
from quietgrad.lab.papers.verdicts import Order, judge_statement
from quietgrad.lab.papers.watched import figure_config, mean_of, prepared, watch

ADJUSTED = "end_to_end_adjusted_cifar10_eps3"
FROZEN, RANKED = "random_freeze_end_to_end_cifar10_eps3", "ranked_freeze_end_to_end_cifar10_eps3"


def _cooling(rate: float, epochs: int) -> str:
    return f'method.freeze={{schedule = "Cooling", rate = {rate}, epochs = {epochs}}}'


class MaskedError(qg.Observer):
    """Signal lost and whole error of a masked, clipped mean gradient, for several freeze rates.

    E‖ḡ − mean clip_C(m⊙g)‖² and that plus (1 − r)·p·s², with s the release's noise and ḡ the batch's unclipped mean.
    """

    def __init__(self, rates: tuple[float, ...], clip: float) -> None:
        self.rates, self.clip = rates, clip
        self.signal: dict[float, list[float]] = {rate: [] for rate in rates}
        self.noise: list[float] = []
        self._rows: list[torch.Tensor] = []

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        self._rows.append(flatten_rows(grads.dense()).double())

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
        rows = torch.cat(self._rows)
        self._rows = []
        mean = rows.mean(0)
        generator = torch.Generator().manual_seed(step)
        for rate in self.rates:
            masked = rows * (torch.rand(rows.shape[1], generator=generator) >= rate)
            norms = masked.norm(dim=1, keepdim=True).clamp_min(1e-12)
            estimate = (masked * (self.clip / norms).clamp(max=1.0)).mean(0)
            self.signal[rate].append(float((mean - estimate).square().sum()))
        self.noise.append(rows.shape[1] * released[0].std ** 2)


def figure1(scale: Scale, place: Place) -> Finding:
    config = figure_config(
        ADJUSTED,
        scale,
        ("model.name=tanh_cnn", "training.epochs=1", "privacy.epsilon=3.0", "training.lr=1.0"),
    )
    setup, mechanism = prepared(config, place)
    rates = (0.0, 0.3, 0.6, 0.9)
    observer = MaskedError(rates, clip=1.0)
    watch(setup, mechanism, [observer], steps=6)
    noise = mean_of(observer.noise)
    signal = {rate: mean_of(observer.signal[rate]) for rate in rates}
    whole = {rate: signal[rate] + (1 - rate) * noise for rate in rates}
    rows = [Row(label=f"r = {rate}: signal lost", ours=round(signal[rate], 4)) for rate in rates]
    rows += [Row(label=f"r = {rate}: whole error", ours=round(whole[rate], 4)) for rate in rates]
    holds = signal[0.9] > signal[0.0] and whole[0.9] < whole[0.0]
    curves = tuple(
        Curve(label=name, x=rates, y=tuple(values[0.0] - values[r] for r in rates))
        for name, values in (
            ("signal loss, no freeze minus freeze", signal),
            ("error, no freeze minus freeze", whole),
        )
    )
    return Finding(
        rows=tuple(rows),
        verdict="holds" if holds else "does not hold",
        why=f"at r = 0.9 the signal lost goes from {signal[0.0]:.2g} to {signal[0.9]:.2g}, the whole error from "
        f"{whole[0.0]:.2g} to {whole[0.9]:.2g}",
        unit="squared length",
        settings=_SETTINGS,
        pictures=(Picture(x="freeze rate", y="difference", curves=curves),),
    )


_SETTINGS = "26k CNN on 4,000 embedded images, batch 250, short private runs at ε = 3, C = 1 (research mode)"


def figure2(scale: Scale, place: Place) -> Finding:
    rows, curves = [], []
    for label, config, own in (("no freeze", ADJUSTED, ()), ("random freeze", FROZEN, (_cooling(0.9, 5),))):
        changes = ("model.name=tanh_cnn", "training.epochs=8", *own)
        setup, mechanism = prepared(figure_config(config, scale, changes), place)
        norms = EncodedNorms(every=4)
        watch(setup, mechanism, [norms])
        last = torch.cat([norms.norms[step] for step in sorted(norms.norms)[-4:]])
        counts = torch.histc(last.clamp(1e-2, 1e2).log10(), bins=20, min=-2, max=2)
        curves.append(
            Curve(
                label=label,
                x=tuple((10.0 ** torch.linspace(-1.9, 1.9, 20)).tolist()),
                y=tuple((100 * counts / len(last)).tolist()),
            )
        )
        parts = {"clipped": last > 1.0, "above 10": last > 10.0, "below 0.1": last < 0.1}
        rows += [_share(f"{label}: {what}", part) for what, part in parts.items()]
    claims = [Order(f"no freeze: {what}", f"random freeze: {what}") for what in parts]
    verdict, why = judge_statement(rows, claims)
    return Finding(
        rows=tuple(rows),
        verdict=verdict,
        why=why,
        unit="% of gradients in the last epoch",
        settings=f"{_SETTINGS}, 8 epochs, cooling to 0.9 in 5",
        pictures=(
            Picture(
                title="last epoch",
                x="norm that the clip sees (C = 1)",
                y="% of gradients",
                curves=tuple(curves),
                log_x=True,
            ),
        ),
    )


def _share(label: str, found: torch.Tensor) -> Row:
    share = 100 * float(found.double().mean())
    return Row(
        label=label, ours=round(share, 1), spread=round((share * (100 - share) / len(found)) ** 0.5, 1)
    )


def figure3(scale: Scale, place: Place) -> Finding:
    found: dict[str, list[int]] = {}
    for label, config in (("random", FROZEN), ("ranked", RANKED)):
        changes = ("model.name=tanh_cnn", "training.epochs=12", "data.private=1000", _cooling(0.9, 10))
        setup, mechanism = prepared(figure_config(config, scale, changes), place)
        counts = FreezeCounts()
        watch(setup, mechanism, [counts])
        found[label] = counts.histogram()
    length = max(len(values) for values in found.values())
    shares = {
        label: torch.tensor(v + [0] * (length - len(v))).double() / sum(v) for label, v in found.items()
    }
    distance = float((shares["random"] - shares["ranked"]).abs().sum()) / 2
    spread = {
        label: float((s * (torch.arange(length) - (s * torch.arange(length)).sum()) ** 2).sum().sqrt())
        for label, s in shares.items()
    }
    return Finding(
        rows=(
            Row(label="random: standard deviation", ours=round(spread["random"], 3)),
            Row(label="ranked: standard deviation", ours=round(spread["ranked"], 3)),
            Row(label="distance of the histograms", ours=round(distance, 3)),
        ),
        verdict="holds" if distance < 0.1 else "holds in part",
        why=f"the histograms differ by {distance:.0%} of the parameters",
        unit="times frozen, of 12 epochs",
        settings=f"{_SETTINGS}; 1,000 records",
        pictures=(
            Picture(
                x="times frozen",
                y="share of parameters",
                curves=tuple(
                    Curve(label=label, x=tuple(float(i) for i in range(length)), y=tuple(s.tolist()))
                    for label, s in shares.items()
                ),
            ),
        ),
    )


COMPUTED: Mapping[str, Experiment] = {
    "figure1": Computed(make=figure1, minutes={"quick": 0.6}),
    "figure2": Computed(make=figure2, minutes={"quick": 1.0}),
    "figure3": Computed(make=figure3, minutes={"quick": 0.6}),
}

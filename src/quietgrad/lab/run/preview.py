"""What a config would do, before training: the algorithm of each layer, each method's releases and noise.

Everything is measured on test data, weights are fresh and no private record is read: explaining costs no privacy.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.planning import plan
from quietgrad.lab.data import Parts
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.config_sections import MethodConfig, PrivacyConfig
from quietgrad.lab.run.linear_probe_preview import explain_linear_probe
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.presets import QUIET, presets, with_method
from quietgrad.lab.run.recommendation import BIAS, recommend
from quietgrad.lab.run.setup import Setup, momentum_of, set_up
from quietgrad.lab.run.train import losses_of

ENOUGH = 128
"""Records that show which algorithm a layer gets; more would only take longer."""


@dataclass(frozen=True, kw_only=True)
class MethodReport:
    """One method on the config's model.

    Args:
        dimension: coordinates that get noise, over all releases.
        sensitivity: of each release.
        noise_multiplier: effective, of the step.
        noise: length of the noise in p.grad, decoded and post-processed, times the batch.
        noise_to_signal: that length over the longest signal that the clips let through.
        problem: why the method cannot be used here, empty if it can.
    """

    method: str
    dimension: int = 0
    sensitivity: tuple[float, ...] = ()
    noise_multiplier: float = 0.0
    noise: float = 0.0
    noise_to_signal: float = 0.0
    problem: str = ""
    releases: tuple[dict[str, Any], ...] = ()

    def cells(self) -> dict[str, Any]:
        """Return what a table shows."""
        bias = BIAS.get(self.method, "of its own")
        if self.problem:
            return dict.fromkeys(
                ("method", "dimension", "sensitivity", "σ", "noise / signal", "bias"), "–"
            ) | {"method": self.method}
        sensitivity = " + ".join(f"{value:g}" for value in self.sensitivity)
        return {
            "method": self.method,
            "dimension": f"{self.dimension:,}",
            "sensitivity": sensitivity,
            "σ": self.noise_multiplier,
            "noise / signal": self.noise_to_signal,
            "bias": bias,
        }


@dataclass(frozen=True, kw_only=True)
class Explained:
    """Everything that `quietgrad explain` says."""

    recommendation: str
    model: str
    parameters: int
    epsilon: float
    delta: float
    steps: int
    batch: float
    rows: int
    layers: tuple[dict[str, Any], ...]
    methods: tuple[MethodReport, ...]
    independence: str
    unit: str
    sizes: str
    noise: str = ""

    @property
    def units(self) -> str:
        return f"{self.unit}s"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def explain_config(config: Config, *, name: str = "CONFIG", data_dir: Path | None = None) -> Explained:
    """Measure the config's model, and every method that has a preset on it.

    Args:
        name: how the user names the config, for the command that compares methods.
    """
    setup = set_up(config, data_dir=data_dir)
    sizes = setup.parts.sizes
    setup.parts = _with_test_rows(setup.parts)
    rows = int(min(config.training.batch, config.training.micro_batch, len(setup.parts.test), ENOUGH))
    mechanism = build_mechanism(
        config.method, config.privacy, setup.parts, setup.model, setup.batches, momentum_of(config.training)
    )
    layers, independence = engine_algorithms(setup, mechanism, rows)
    options = {name: preset["method"] for name, preset in presets().items()}
    options[config.method.name] = config.method.options or options.get(config.method.name, {})
    methods = [MethodConfig(name=method, **values) for method, values in options.items()]
    reports = (
        probe_report(config, data_dir),
        *(method_report(method, config.privacy, setup) for method in methods),
    )
    return Explained(
        recommendation=recommend(name, reports),
        model=config.model.name,
        parameters=sum(p.numel() for p in setup.model.parameters() if p.requires_grad),
        epsilon=epsilon_of(plan(mechanism, setup.batches), config.privacy.delta),
        delta=config.privacy.delta,
        steps=setup.batches.steps,
        batch=config.training.batch,
        rows=rows,
        layers=layers,
        methods=reports,
        independence=independence,
        unit="record" if config.data.unit is None else "user",
        sizes=sizes,
        noise=mechanism.noise.remark(setup.batches.steps),
    )


def _with_test_rows(parts: Parts) -> Parts:
    """Rows of zeros where there are no test rows: times and noise do not depend on them."""
    if len(parts.test):
        return parts
    inputs = parts.private.tensors[0].new_zeros(ENOUGH, *parts.input_shape)
    return dataclasses.replace(parts, test=TensorDataset(inputs, torch.zeros(ENOUGH, dtype=torch.int64)))


def engine_algorithms(
    setup: Setup, mechanism: qg.Mechanism, rows: int
) -> tuple[tuple[dict[str, Any], ...], str]:
    """Run one backward pass over test data: which algorithm each layer got, and that samples do not mix."""
    sample = TensorDataset(*(tensor[:rows] for tensor in setup.parts.test.tensors))
    batches = qg.PoissonBatches(sample, rate=1.0, steps=setup.batches.steps)
    with qg.Privatizer(setup.model, _independent(mechanism), batches) as private:
        for x, y in next(iter(batches)).split(rows):
            private.backward(losses_of(setup.model, x, y, setup.config))
        found = private.explain(sample.tensors[0][:4])
    return tuple(dataclasses.asdict(layer) for layer in found.layers), found.independence


def probe_report(config: Config, data_dir: Path | None) -> MethodReport:
    """Return what the private linear probe would release on the config's data; nothing is released."""
    try:
        plan = explain_linear_probe(with_method(config, QUIET), data_dir=data_dir)
    except ValueError as error:
        return MethodReport(method=QUIET, problem=str(error))
    training = plan.releases[-1]
    dimension = plan.directions * plan.classes
    noise = training.noise_multiplier * plan.clip * math.sqrt(dimension)
    return MethodReport(
        method=QUIET,
        dimension=dimension,
        sensitivity=(plan.clip,),
        noise_multiplier=training.noise_multiplier,
        noise=noise,
        noise_to_signal=noise / (plan.records * plan.clip),
    )


def method_report(method: MethodConfig, privacy: PrivacyConfig, setup: Setup) -> MethodReport:
    """Return what the method releases of a step, and the noise that it leaves in the update."""
    try:
        parts = with_few_public(setup.parts, int(method.options.get("rank", 0)))
        mechanism = build_mechanism(
            method, privacy, parts, setup.model, setup.batches, momentum_of(setup.config.training)
        )
        releases, noise = released_noise(setup.model, mechanism, setup)
    except ValueError as error:
        return MethodReport(method=method.name, problem=str(error))
    return MethodReport(
        method=method.name,
        dimension=sum(release["dimension"] for release in releases),
        sensitivity=tuple(release["sensitivity"] for release in releases),
        noise_multiplier=mechanism.multiplier(0),
        noise=noise,
        noise_to_signal=noise / _longest_signal(releases, setup),
        releases=tuple(releases),
    )


def _longest_signal(releases: list[dict[str, Any]], setup: Setup) -> float:
    return setup.batches.sampler.expected_batch * math.hypot(
        *(release["sensitivity"] for release in releases)
    )


def with_few_public(parts: Parts, rank: int) -> Parts:
    """Return as many public examples as a basis of that rank needs: dimension and noise do not depend on the others."""
    most = max(rank, ENOUGH)
    public = TensorDataset(*(tensor[:most] for tensor in parts.public.tensors))
    return dataclasses.replace(parts, public=public)


def _independent(mechanism: qg.Mechanism) -> qg.Mechanism:
    """The mechanism with independent noise of the same multiplier, which single steps show, if its own has bands."""
    return (
        dataclasses.replace(mechanism, noise=qg.Gaussian())
        if isinstance(mechanism.noise, qg.BandedNoise)
        else mechanism
    )


def released_noise(
    model: nn.Module, mechanism: qg.Mechanism, setup: Setup
) -> tuple[list[dict[str, Any]], float]:
    """Return the releases of a step, and the length of what an empty batch puts into p.grad: noise alone."""
    empty: list[list[int]] = [[] for _ in range(setup.batches.steps)]
    batches = qg.PoissonBatches.replay(setup.parts.test, empty, rate=setup.batches.rate)
    with qg.Privatizer(model, _independent(mechanism), batches) as private:
        next(iter(batches))
        releases = [dataclasses.asdict(release) for release in private.explain().releases]
        private.release()
        squares = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    model.zero_grad(set_to_none=True)
    return releases, math.sqrt(squares) * batches.sampler.expected_batch

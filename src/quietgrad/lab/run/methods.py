"""Builds the mechanism that a config names, for a given task and model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

import quietgrad as qg
from quietgrad import schedules
from quietgrad._representations.base import PublicLosses
from quietgrad._representations.masks.ranked_mask import RankedMask
from quietgrad.accounting.planning import Steps
from quietgrad.features.synthetic import synthetic_inputs
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError, nearest
from quietgrad.lab.run.config_sections import MethodConfig, PrivacyConfig
from quietgrad.lab.run.own_methods import find_method, is_foreign
from quietgrad.public_losses import labelled_losses, random_label_losses

PROVIDED = {"public_losses", "model", "batches", "parameters"}
"""Arguments of methods that come from the rest of the config."""

PROBES = 400
"""Made-up inputs of a scaling."""


def build_mechanism(
    method: MethodConfig,
    privacy: PrivacyConfig,
    parts: Parts,
    model: nn.Module,
    batches: Steps,
    momentum: float = 0.0,
) -> qg.Mechanism:
    """Return the method with its options, calibrated to the budget or with the noise that the config fixes."""
    mechanism = uncalibrated(method, parts, model, batches)
    mechanism = with_bands(mechanism, batches, momentum)
    if privacy.noise_multiplier is not None:
        return mechanism.with_noise(privacy.noise_multiplier)
    assert privacy.epsilon is not None
    return qg.calibrate(mechanism, batches, epsilon=privacy.epsilon, delta=privacy.delta)


def with_bands(mechanism: qg.Mechanism, batches: Steps, momentum: float) -> qg.Mechanism:
    """Give the mechanism correlated noise of as many bands as the batches have groups.

    Raises:
        LabError: its coordinates change from step to step, or its noise is not Gaussian alone.
    """
    bands = batches.sampler.groups if isinstance(batches, qg.PoissonBatches) else 1
    if bands == 1:
        return mechanism
    if type(mechanism.noise) is not qg.Gaussian:
        raise LabError(f"training.bands: {mechanism.name} has noise of its own. Leave training.bands out.")
    try:
        return replace(mechanism, noise=qg.BandedNoise.optimised(bands, batches.steps, momentum))
    except ValueError as error:
        raise LabError(f"training.bands: {error}") from None


def uncalibrated(method: MethodConfig, parts: Parts, model: nn.Module, batches: Steps) -> qg.Mechanism:
    """Return the method with its options and what it needs of the task."""
    make = find_method(method.name)
    wanted = inspect.signature(make).parameters
    _check_options(method, set(wanted) - PROVIDED)
    provided: dict[str, Any] = {}
    if "public_losses" in wanted and method.options.get("basis") != "random":
        provided["public_losses"] = public_losses(method.name, parts)
    options = {name: _option(value) for name, value in method.options.items()}
    if "probes" in wanted:
        provided["probes"] = probe_losses(str(options.pop("probes", "made-up")), parts, model)
    if "batches" in wanted:
        provided |= {"model": model, "batches": batches}
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if "parameters" in wanted:
        provided["parameters"] = parameters
    try:
        built = make(**provided, **options)
    except TypeError as error:
        raise LabError(f"method {method.name}: {error}.") from None
    except ValueError as error:
        raise LabError(f"method {method.name}: {error}") from None
    if not isinstance(built, qg.Mechanism):
        raise LabError(f"method {method.name}: expected a qg.Mechanism, got {type(built).__name__}.")
    if is_foreign(method.name):
        built = replace(built, name=method.name)  # the ledger says whose code it was
    return built if method.within is None else built @ _mask(method.within)


def _mask(options: Mapping[str, Any]) -> qg.Representation:
    """{mask = "random", freeze = 0.4, redraw = "epoch"}."""
    rest = {name: _option(value) for name, value in options.items() if name != "mask"}
    kind = {"random": qg.RandomMask, "ranked": RankedMask}.get(str(options.get("mask", "random")))
    if kind is None:
        raise LabError(f"method.within: expected mask = 'random' or 'ranked', got {options['mask']!r}.")
    try:
        made: qg.Representation = kind(**rest)
    except (TypeError, ValueError) as error:
        raise LabError(f"method.within: {error}") from None
    return made


def public_losses(name: str, parts: Parts) -> PublicLosses:
    """Losses on the public part: with its labels if the task has them, else with labels drawn anew each step."""
    if len(parts.public) == 0:
        raise LabError(
            f"{name} needs public data. Set data.public = N, or data.public_from to another data set."
        )
    if parts.public_labels is not None:
        return labelled_losses(parts.public_inputs, parts.public_labels)
    return random_label_losses(parts.public_inputs, parts.num_classes)


def probe_losses(kind: str, parts: Parts, model: nn.Module) -> PublicLosses:
    """Losses of made-up inputs of the task's shape, or of its public inputs, under random labels."""
    if kind == "public":
        return public_losses("method.probes = 'public'", parts)
    if kind != "made-up":
        raise LabError(f"method.probes: expected 'made-up' or 'public', got {kind!r}.")
    inputs = parts.private.tensors[0]  # its shape and dtype alone
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    made = synthetic_inputs(
        PROBES, parts.input_shape, vocabulary=None if inputs.is_floating_point() else tables[0]
    )
    return random_label_losses(made, parts.num_classes)


def _check_options(method: MethodConfig, known: set[str]) -> None:
    for option in method.options:
        if option not in known:
            raise LabError(f"Unknown key 'method.{option}' of {method.name}{nearest(option, known)}.")


def _option(value: Any) -> Any:
    """A schedule is written as a table: {schedule = "Cooling", rate = 0.9, epochs = 10}."""
    if not isinstance(value, Mapping) or "schedule" not in value:
        return value
    kinds = {kind.__name__: kind for kind in schedules.Schedule.__subclasses__()}
    name = str(value["schedule"])
    if name not in kinds:
        raise LabError(f"Unknown schedule {name!r}{nearest(name, kinds)}. Known: {', '.join(kinds)}.")
    try:
        return kinds[name](**{key: item for key, item in value.items() if key != "schedule"})
    except TypeError as error:
        raise LabError(f"schedule {name}: {error}.") from None

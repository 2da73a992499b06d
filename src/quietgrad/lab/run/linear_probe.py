"""Set up a run of the private linear probe: features by the rule, released statistics, a head."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._linear_probe.recipe import (
    MICRO_BATCH,
    Source,
    all_at_once,
    fit_rescaling,
    made_up_rows,
    paid_source,
    probe_program,
    zero_head,
)
from quietgrad._linear_probe.rule import PrivacyWarning, Settings, few_public, settings, warning
from quietgrad.features.encoders import Mirrored, Pixels, Scatter, ScatterRoots, encode
from quietgrad.features.images import image_encoder
from quietgrad.features.patterns import Patches
from quietgrad.features.pipeline import Rescale
from quietgrad.features.quadratic import Quadratic
from quietgrad.lab.data import Parts
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import Config, parse_section
from quietgrad.lab.run.config_sections import DataConfig, Section
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.kept_statistics import KeptStatistics
from quietgrad.lab.run.released_metrics import plan_accuracy
from quietgrad.lab.run.setup import Setup, make_optimizer, make_scheduler
from quietgrad.lab.run.task import is_pretrained, load_task

FEATURES = "features.pt"


class LinearProbeOptions(Section):
    """Options of the method; everything else follows from the rule.

    Args:
        encoder: "auto" is "scatter" for grey images, "patches" for colour images, else "pixels". "roots" is "scatter"
            with square roots of its moduli (docs/linear_probe.md).
        moments: "auto" is "public" if there are public records, else chosen by the rule. "mixed" is for large budgets
            (docs/linear_probe.md).
        mirrored: give an image and its mirror image the same features, where both mean the same (clothes do,
            digits do not). "patches" always do.
        products: take the directions from products of features too, for large budgets (docs/linear_probe.md);
            needs "public" or "synthetic" moments.
    """

    encoder: Literal["auto", "scatter", "roots", "patches", "pixels"] = "auto"
    moments: Literal["auto", "public", "synthetic", "mixed", "private", "mean"] = "auto"
    mirrored: bool = False
    products: bool = False


class Encoded:
    """A task whose records are encoded, once for all runs of a process that share data and encoder."""

    def __init__(
        self, data: DataConfig, encoder: str, mirrored: bool, data_dir: Path | None, device: str = "cpu"
    ) -> None:
        self.parts: Parts = load_task(Config(data=data), data_dir=data_dir)
        self.encoder = make_encoder(encoder, self.parts.input_shape, mirrored=mirrored)
        self.private, self.public, self.test = (
            encode(self.encoder, part.tensors[0], device=device) if len(part) else part.tensors[0]
            for part in (self.parts.private, self.parts.public, self.parts.test)
        )


encoded = lru_cache(maxsize=1)(Encoded)


def set_up_linear_probe(
    config: Config, folder: RunFolder, *, resume: bool, data_dir: Path | None, device: str = "cpu"
) -> tuple[Setup, qg.Program, qg.Statistics]:
    """Return the objects of a run. Statistics are released here, and kept in the folder for a run that is resumed.

    Records are encoded and the head is trained on the device; statistics are released on the CPU.
    """
    options = checked_options(config)
    task = encoded(config.data, options.encoder, options.mirrored, data_dir, device)
    plan = plan_linear_probe(config, task.parts, task.private.shape[1:])
    rule, source, program, batches, remarks = plan
    if resume:
        folder.resume(config)
    else:
        for remark in remarks:
            warnings.warn(remark, PrivacyWarning, stacklevel=2)
        folder.start(config, task.parts.record)
    statistics = KeptStatistics(program, batches, folder)
    saved = folder.load(FEATURES)
    if saved is None:  # a new run, or one that was broken off before all of its statistics were released
        rescale = _fitted(task, source, statistics, rule, products=options.products)
        saved = {"encoder": type(task.encoder).__name__, "rescale": rescale.state_dict()}
        saved["lost"] = statistics.lost
        folder.save(FEATURES, saved)
    else:
        rescale = _loaded(saved)
    resolved = resolved_config(config, rule, rule.steps, task.parts.units)
    setup = _setup(resolved, task, rescale, rule, device)
    setup.lost_statistics = saved.get("lost", 0)
    return setup, program, statistics


class ProbePlan(NamedTuple):
    """Everything that is fixed before a record is seen, and what is to be said of it."""

    rule: Settings
    source: Source
    program: qg.Program
    batches: qg.PoissonBatches
    remarks: tuple[str, ...]


def plan_linear_probe(config: Config, parts: Parts, row_shape: Sequence[int]) -> ProbePlan:
    """The rule's settings and the one calibrated program, from the numbers of records and classes and a row's shape."""
    assert config.privacy.epsilon is not None
    epsilon, delta = config.privacy.epsilon, config.privacy.delta
    records, classes = parts.units, parts.num_classes
    rule = settings(records=records, classes=classes, epsilon=epsilon, delta=delta)
    pretrained = is_pretrained(config.data.features)
    if pretrained:  # their directions are as long as they should be
        rule = replace(rule, dimension=0.0)
    options = checked_options(config)
    source = _source(options, parts, pretrained=pretrained) or paid_source(math.prod(row_shape), rule)
    _check_products(options, source)
    batches = all_at_once(parts.private, rule, **users_of(config, parts))
    program = replace(probe_program(source, row_shape, rule), after=plan_accuracy(config, parts))
    program = qg.calibrate(program, batches, epsilon=epsilon, delta=delta)
    remarks = [
        warning(records=records, classes=classes, epsilon=epsilon, delta=delta),
        few_public(len(parts.public), rule) if source == "public" else None,
    ]
    return ProbePlan(rule, source, program, batches, tuple(remark for remark in remarks if remark))


def make_encoder(name: str, shape: tuple[int, ...], *, mirrored: bool = False) -> nn.Module:
    """Return the encoder that a config names, for records of a shape."""
    if mirrored and len(shape) != 3:
        raise LabError(f"method.mirrored = true is for images, and records have shape {shape}. Leave it out.")
    if name == "auto":
        encoder = image_encoder(shape) if len(shape) == 3 else Pixels()
    else:
        known = {"scatter": Scatter, "roots": ScatterRoots, "patches": Patches, "pixels": lambda _: Pixels()}
        encoder = known[name](shape)
    return Mirrored(encoder) if mirrored and not isinstance(encoder, Patches) else encoder


def checked_options(config: Config) -> LinearProbeOptions:
    """Return the method's options; settings that it would not heed are refused."""
    if config.data.pooled != "mean":
        raise LabError("quiet averages the records of a user. Leave out data.pooled.")
    options = parse_section(LinearProbeOptions, config.method.options, "method")
    if config.privacy.epsilon is None:
        raise LabError("quiet plans its steps and features from ε. Give privacy.epsilon.")
    if config.augment.active or config.training.warm_start != "none" or config.data.features == "scatter":
        raise LabError(
            'quiet makes its own features and starts from zero. Leave out [augment], data.features = "scatter" '
            "and training.warm_start."
        )
    return options


def _source(options: LinearProbeOptions, parts: Parts, *, pretrained: bool) -> Source | None:
    """Return what the config asks for or the kind of records decides; None where it is up to the rule."""
    if options.moments == "public" and len(parts.public) == 0:
        raise LabError(
            "method.moments = 'public' needs public data. Set data.public = N, or take 'synthetic' or 'private'."
        )
    images = len(parts.input_shape) == 3
    if options.moments in ("synthetic", "mixed") and not images:
        raise LabError(
            f"method.moments = {options.moments!r} makes up images, and these are none. Take 'private'."
        )
    if options.moments != "auto":
        return options.moments
    if len(parts.public):
        return "public"
    if pretrained:
        return "mean"
    return "synthetic" if images else None


def _check_products(options: LinearProbeOptions, source: Source) -> None:
    if options.products and source not in ("public", "synthetic"):
        raise LabError(
            f"method.products = true needs public or made-up images, and moments are {source!r}. Leave it out."
        )


def _fitted(
    task: Encoded, source: Source, statistics: qg.Statistics, rule: Settings, *, products: bool
) -> Rescale | Quadratic:
    others = task.public
    if source in ("synthetic", "mixed"):
        others = made_up_rows(task.encoder, task.parts.input_shape)
    return fit_rescaling(
        source, rule, statistics=statistics, rows=task.private, others=others, products=products
    )


def _loaded(saved: dict[str, Any]) -> Rescale | Quadratic:
    state: dict[str, Tensor] = saved["rescale"]
    rescale = room_for(state)
    rescale.load_state_dict(state)
    return rescale


def room_for(state: dict[str, Tensor]) -> Rescale | Quadratic:
    """Return a rescaling with room for loaded numbers."""
    if "landmarks" not in state:
        return Rescale.shaped(*state["directions"].shape)
    return Quadratic.shaped(state["mean"].shape[0], *state["weights"].shape)


def users_of(config: Config, parts: Parts) -> dict[str, Any]:
    """Return what batches are told of users; nothing where records are protected."""
    return {} if parts.users is None else {"unit": parts.users, "most_records": config.data.most_records}


def resolved_config(config: Config, rule: Settings, steps: int, units: int) -> Config:
    """Return the config with what the rule decided written into it."""
    training = {"epochs": steps, "batch": units, "lr": rule.lr, "micro_batch": MICRO_BATCH}
    fixed = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "schedule": rule.schedule}
    return config.model_copy(
        update={
            "training": config.training.model_copy(update=training | fixed),
            "averaging": config.averaging.model_copy(update={"decay": 0.0}),
        }
    )


def _setup(config: Config, task: Encoded, rescale: Rescale | Quadratic, rule: Settings, device: str) -> Setup:
    parts = _rescaled_parts(task, rescale)
    model = zero_head(rescale.width, parts.num_classes).to(device)
    batches = all_at_once(parts.private, rule, **users_of(config, parts))
    batches.device = torch.device(device)
    optimizer = make_optimizer(model, config.training)
    scheduler = make_scheduler(optimizer, config.training, batches.steps)
    return Setup(config, parts, model, batches, optimizer, scheduler, average=None)


def _rescaled_parts(task: Encoded, rescale: Rescale | Quadratic) -> Parts:
    def part(rows: Float[Tensor, "n ..."], data: TensorDataset) -> TensorDataset:
        turned = torch.cat([rescale(few) for few in rows.split(MICRO_BATCH)])
        return TensorDataset(turned, *data.tensors[1:])

    record: dict[str, Any] = {**task.parts.record, "features": type(task.encoder).__name__}
    private, test = part(task.private, task.parts.private), part(task.test, task.parts.test)
    return Parts(
        private=private,
        public=TensorDataset(private.tensors[0][:0]),
        test=test,
        num_classes=task.parts.num_classes,
        input_shape=(rescale.width,),
        record=record,
        users=task.parts.users,
    )

"""Set up a run of the private linear probe on a table: the recipe of `quietgrad.sklearn`, kept in a folder.

Classes are learned by `recipe`, numbers by `regression`. Ranks, mean and moments are released once, then the head is
trained on all records, or users, in every step.
"""

from __future__ import annotations

import warnings
from collections.abc import Container
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._linear_probe.ranks import NAME as RANKS
from quietgrad._linear_probe.ranks import even_ranks, numbers_or_nan, plan_ranks, release_ranks
from quietgrad._linear_probe.recipe import (
    MICRO_BATCH,
    Source,
    fit_rescaling,
    paid_source,
    probe_program,
    with_products,
    zero_head,
)
from quietgrad._linear_probe.regression import STEPS, preconditioned, preconditioner, regression_program
from quietgrad._linear_probe.rule import PrivacyWarning, Settings, few_public, settings, warning
from quietgrad.features.encoders import encode
from quietgrad.features.pipeline import Rescale
from quietgrad.features.table_rows import FeatureLayout, TableRows
from quietgrad.lab.data import Parts
from quietgrad.lab.data.stated_and_found import remarks_on_columns
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.kept_statistics import KeptStatistics
from quietgrad.lab.run.linear_probe import (
    FEATURES,
    ProbePlan,
    checked_options,
    resolved_config,
    set_up_linear_probe,
    users_of,
)
from quietgrad.lab.run.released_metrics import plan_accuracy
from quietgrad.lab.run.setup import Setup, make_optimizer, make_scheduler
from quietgrad.lab.run.table_features import Intercept, numbers_of, table_features
from quietgrad.lab.run.task import load_task

TABLE, PRECONDITIONER = "table", "preconditioner"
"""Keys of the saved features."""


def set_up_probe(
    config: Config, folder: RunFolder, *, resume: bool, data_dir: Path | None, device: str = "cpu"
) -> tuple[Setup, qg.Program, qg.Statistics]:
    """Return the objects of a run: of a table if columns are stated, else of images, texts or arrays.

    Args:
        device: where the head is trained, and records but those of tables are encoded.
    """
    set_up = set_up_table_probe if config.columns else set_up_linear_probe
    return set_up(config, folder, resume=resume, data_dir=data_dir, device=device)


def set_up_table_probe(
    config: Config, folder: RunFolder, *, resume: bool, data_dir: Path | None, device: str = "cpu"
) -> tuple[Setup, qg.Program, qg.Statistics]:
    """Return the objects of a run. Statistics are released here, and kept in the folder for a run that is resumed."""
    parts = load_task(config, data_dir=data_dir)
    plan = plan_table_probe(config, parts)
    if resume:
        folder.resume(config)
    else:
        for remark in plan.remarks:
            warnings.warn(remark, PrivacyWarning, stacklevel=2)
        folder.start(config, parts.record)
    statistics = KeptStatistics(plan.program, plan.batches, folder)
    saved = folder.load(FEATURES)
    if saved is None:  # a new run, or one that was broken off before all of its statistics were released
        fitted = _fit(parts, plan, statistics)
        saved = {TABLE: numbers_of(fitted.rows, fitted.last), "lost": statistics.lost}
        if fitted.preconditioner is not None:
            saved[PRECONDITIONER] = fitted.preconditioner
        folder.save(FEATURES, saved)
    assert parts.schema is not None
    rows, last = table_features(parts.schema, saved[TABLE])
    setup = _setup(config, _encoded(parts, rows, last), plan, saved.get(PRECONDITIONER), device)
    setup.lost_statistics = saved["lost"]
    return setup, plan.program, statistics


def plan_table_probe(config: Config, parts: Parts) -> ProbePlan:
    """Return the rule's settings and the one calibrated program, from public numbers alone."""
    assert parts.schema is not None
    assert config.privacy.epsilon is not None
    epsilon, delta = config.privacy.epsilon, config.privacy.delta
    _check_options(config, parts)
    classes, table = max(2, parts.num_classes), parts.target is None
    rule = settings(records=parts.units, classes=classes, epsilon=epsilon, delta=delta, table=table)
    layout = FeatureLayout.of_schema(parts.schema)
    ranks = {} if len(parts.public) else plan_ranks(layout, rule)
    width = row_width(layout, ranks)
    source: Source = "private" if parts.target is not None else _source(config, parts, width, rule)
    program, steps = probe_program(source, (width,), rule), rule.steps
    if parts.target is not None:
        program, steps = regression_program(width + 1), STEPS
    program = qg.Program(
        training=program.training,
        statistics={**ranks, **program.statistics},
        after=plan_accuracy(config, parts),
    )
    batches = qg.PoissonBatches(parts.private, rate=1.0, steps=steps, **users_of(config, parts))
    program = qg.calibrate(program, batches, epsilon=epsilon, delta=delta)
    remarks = [
        warning(records=parts.units, classes=parts.num_classes, epsilon=epsilon, delta=delta),
        few_public(len(parts.public), rule) if source == "public" else None,
        *remarks_on_columns(parts),
    ]
    return ProbePlan(rule, source, program, batches, tuple(remark for remark in remarks if remark))


def row_width(layout: FeatureLayout, planned: Container[str]) -> int:
    """Coordinates of a row, by the names of the planned statistics."""
    return TableRows(layout, even_ranks(layout) if RANKS in planned else None).width


class _Fitted(NamedTuple):
    rows: TableRows
    last: nn.Module
    preconditioner: Tensor | None


def _fit(parts: Parts, plan: ProbePlan, statistics: qg.Statistics) -> _Fitted:
    """Release the statistics; everything here is a function of them, of public rows and of the plan."""
    assert parts.schema is not None
    layout = FeatureLayout.of_schema(parts.schema)
    features = parts.private.tensors[0]
    rows = TableRows(layout, release_ranks(layout, statistics, numbers_or_nan(layout, features)))
    encoded = encode(rows, features)
    if parts.target is not None:
        last = Intercept()
        released = statistics.release("moments", last(encoded))
        return _Fitted(rows, last, preconditioner(released.blocks, released.std))
    others = encode(rows, parts.public_inputs) if len(parts.public) else None
    rescale = fit_rescaling(plan.source, plan.rule, statistics=statistics, rows=encoded, others=others)
    assert isinstance(rescale, Rescale), "without products, which `with_products` adds"
    whole = rescale if rows.blocks.ranks is not None else with_products(rescale, plan.rule, plan.source)
    return _Fitted(rows, whole, None)


def _check_options(config: Config, parts: Parts) -> None:
    options = checked_options(config)
    if options.encoder != "auto" or options.mirrored or options.products:
        raise LabError(
            "method.encoder, method.mirrored and method.products are for images, and these are the columns of a table. "
            "Leave them out."
        )
    if options.moments in ("synthetic", "mixed"):
        raise LabError(
            f"method.moments = {options.moments!r} makes up images, and these are none. Take 'private'."
        )
    if parts.target is not None and (options.moments != "auto" or len(parts.public)):
        raise LabError(
            f"columns.{config.data.label} is a number, which is learned from the private rows' own moments. Leave out "
            "method.moments and data.public."
        )


def _source(config: Config, parts: Parts, width: int, rule: Settings) -> Source:
    wanted = checked_options(config).moments
    if wanted == "public" and not len(parts.public):
        raise LabError("method.moments = 'public' needs public data. Set data.public = N, or take 'private'.")
    if wanted == "auto":
        return "public" if len(parts.public) else paid_source(width, rule)
    assert wanted not in ("synthetic", "mixed")
    return wanted


def _encoded(parts: Parts, rows: TableRows, last: nn.Module) -> Parts:
    """Return the parts with what the head reads in the place of features."""

    def part(data: TensorDataset) -> TensorDataset:
        features = [last(encode(rows, few)) for few in data.tensors[0].split(MICRO_BATCH)]
        return TensorDataset(torch.cat(features), *data.tensors[1:])

    private, test = part(parts.private), part(parts.test)
    return Parts(
        private=private,
        public=TensorDataset(private.tensors[0][:0]),
        test=test,
        num_classes=parts.num_classes,
        input_shape=tuple(private.tensors[0].shape[1:]),
        record={**parts.record, "features": type(rows).__name__},
        users=parts.users,
        classes=parts.classes,
        target=parts.target,
    )


class PreconditionedSteps(torch.optim.Optimizer):
    """w ← w − P·gradient, P from released moments: the steps of `regression`.

    Args:
        parameters: one row of weights.
        matrix: P.
    """

    def __init__(self, parameters: Any, matrix: Float[Tensor, "d d"]) -> None:
        super().__init__(parameters, {"lr": 1.0})
        self._matrix = matrix

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weights in group["params"]:
                matrix = self._matrix.to(weights.device)
                weights -= group["lr"] * preconditioned(weights.grad, matrix)


def _setup(config: Config, parts: Parts, plan: ProbePlan, matrix: Tensor | None, device: str) -> Setup:
    steps = plan.batches.steps
    config = resolved_config(config, plan.rule, steps, parts.units)
    model = zero_head(parts.input_shape[0], max(1, parts.num_classes)).to(device)
    optimizer = (
        make_optimizer(model, config.training)
        if matrix is None
        else PreconditionedSteps(model.parameters(), matrix)
    )
    batches = qg.PoissonBatches(parts.private, rate=1.0, steps=steps, **users_of(config, parts))
    batches.device = torch.device(device)
    scheduler = make_scheduler(optimizer, config.training, steps)
    return Setup(config, parts, model, batches, optimizer, scheduler, average=None)

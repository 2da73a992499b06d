"""What a run of the private linear probe would release, before it: the joint plan, from public numbers alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from quietgrad._linear_probe.recipe import keeps_all_directions
from quietgrad.accounting.evaluate import epsilon as epsilon_of
from quietgrad.accounting.planning import whole_plan
from quietgrad.features.encoders import encode
from quietgrad.features.table_rows import FeatureLayout, TableRows
from quietgrad.lab.run.config import Config
from quietgrad.lab.run.linear_probe import ProbePlan, checked_options, make_encoder, plan_linear_probe
from quietgrad.lab.run.table_probe import plan_table_probe, row_width
from quietgrad.lab.run.task import load_task


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """A line of the joint plan.

    Args:
        share: part of the squared budget.
        noise_multiplier: σ, noise over sensitivity.
        times: lines in the ledger.
    """

    name: str
    what: str
    share: float
    noise_multiplier: float
    times: int


@dataclass(frozen=True, kw_only=True)
class LinearProbePlan:
    """Everything that `quietgrad explain` says of a quiet config.

    Args:
        row: the shape of an encoded record.
        many: what is protected: records or users.
        classes: 0 where a number is predicted.
        dimension: effective dimensions that α is chosen for.
        directions: at most so many; as many as the public records have, if they are fewer, and all of a table that
            releases its own.
    """

    encoder: str
    row: tuple[int, ...]
    moments: str
    records: int
    many: str
    classes: int
    epsilon: float
    delta: float
    steps: int
    lr: float
    clip: float
    dimension: float
    directions: int
    releases: tuple[PlannedRelease, ...]
    remarks: tuple[str, ...]
    sizes: str

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def explain_linear_probe(config: Config, *, data_dir: Path | None = None) -> LinearProbePlan:
    """Return the plan of a run; no private record is encoded, and nothing is released."""
    options = checked_options(config)
    parts = load_task(config, data_dir=data_dir)
    if parts.schema is not None:
        plan, encoder = plan_table_probe(config, parts), TableRows.__name__
        row: tuple[int, ...] = (row_width(FeatureLayout.of_schema(parts.schema), plan.program.statistics),)
    else:
        module = make_encoder(options.encoder, parts.input_shape, mirrored=options.mirrored)
        row = tuple(encode(module, torch.zeros(1, *parts.input_shape)).shape[1:])
        plan, encoder = plan_linear_probe(config, parts, row), type(module).__name__
    return LinearProbePlan(
        encoder=encoder,
        row=row,
        moments=plan.source,
        records=parts.units,
        many="records" if parts.users is None else "users",
        classes=parts.num_classes,
        epsilon=epsilon_of(whole_plan(plan.program, plan.batches), config.privacy.delta),
        delta=config.privacy.delta,
        steps=plan.batches.steps,
        lr=plan.rule.lr,
        clip=plan.rule.clip,
        dimension=plan.rule.dimension,
        directions=_directions(plan, row, len(parts.public)),
        releases=tuple(_releases(plan)),
        remarks=plan.remarks,
        sizes=parts.sizes,
    )


def _directions(plan: ProbePlan, row: tuple[int, ...], public: int) -> int:
    most = plan.rule.directions
    if plan.source == "public":
        return min(most, public - 1)
    return math.prod(row) if keeps_all_directions(plan.source, row) else most


def _releases(plan: ProbePlan) -> Iterator[PlannedRelease]:
    program, batches = plan.program, plan.batches
    yield from (_planned(plan, name) for name in program.statistics)
    yield PlannedRelease(
        name="training",
        what="gradient of the head",
        share=program.training_share,
        noise_multiplier=program.training.multiplier(0),
        times=batches.steps,
    )
    yield from (_planned(plan, name) for name in program.after)


def _planned(plan: ProbePlan, name: str) -> PlannedRelease:
    release = plan.program.releases[name]
    return PlannedRelease(
        name=name,
        what=type(release.statistic).__name__,
        share=release.share,
        noise_multiplier=plan.program.multiplier(name, plan.batches),
        times=1,
    )

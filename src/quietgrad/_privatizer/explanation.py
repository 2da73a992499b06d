"""What a private step does: each layer's algorithm, each release's size and noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quietgrad._capture.independence import check_independence
from quietgrad._capture.recorder import Recorder
from quietgrad._gradients.space import coordinates
from quietgrad._gradients.tuning import LayerReport
from quietgrad._independence.in_loop import LoopCheck
from quietgrad._kernels.levels import describe
from quietgrad._privatizer.step import Step
from quietgrad._sampling.poisson import PoissonSampler


@dataclass(frozen=True, kw_only=True)
class ReleaseReport:
    """One release of a step.

    Args:
        dimension: coordinates that receive noise.
        sensitivity: how far one record, or user, can move the sum.
        std: of the noise on each coordinate of the sum.
        noise_norm: √dimension · std, the noise's expected length, to hold against the sensitivity.
        remark: what its representation says, such as the conditioning before and after a scaling.
    """

    representation: str
    share: float
    dimension: int
    sensitivity: float
    std: float
    noise_norm: float
    remark: str = ""


NOT_FINITE = (
    "a record whose gradient is NaN or infinite adds zero and is paid for; how many there are is private"
)
"""Said of every run: whether and how often it happened would tell of records."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """`print` it, or read the fields.

    Example:
        explanation = private.explain()
        noise = explanation.releases[0].std
    """

    mechanism: str
    unit: str
    layers: tuple[LayerReport, ...]
    releases: tuple[ReleaseReport, ...]
    independence: str
    padding: str
    kernels: str
    not_finite: str = NOT_FINITE
    noise: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{self.mechanism}, per step; protected: {self.unit}",
            _table([_without_remark(release) for release in self.releases]),
            *(f"  {release.representation}: {release.remark}" for release in self.releases if release.remark),
            *([f"noise: {self.noise}"] if self.noise else []),
            "layers",
            _table([dataclasses.asdict(layer) for layer in self.layers]),
            f"independence of samples: {self.independence}",
            f"lengths of records: {self.padding}",
            f"kernels: {self.kernels}",
            f"rows that are not finite: {self.not_finite}",
        ]
        return "\n".join(parts)


def explain(
    step: Step, recorder: Recorder, check: LoopCheck, sampler: PoissonSampler, inputs: Sequence[Any]
) -> Explanation:
    """Collect the reports of a step, for a batch of the expected size."""
    rows = sampler.expected_batch
    return Explanation(
        mechanism=step.mechanism.name,
        unit=_unit(sampler),
        layers=recorder.explain(rows),
        releases=release_reports(step),
        independence=_independence(recorder, check, inputs),
        padding=check.padding,
        kernels=describe(next(iter(recorder.parameters.values())).device.type),
        noise=step.mechanism.noise.remark(sampler.steps),
    )


def release_reports(step: Step) -> tuple[ReleaseReport, ...]:
    """Dimension, sensitivity and noise of each release at this step."""
    reports = []
    for index, release in enumerate(step.mechanism.releases):
        dimension = coordinates(step.codec(index).space)
        std = step.mechanism.std(release, step.public.step)
        reports.append(
            ReleaseReport(
                representation=type(release.representation).__name__,
                share=release.share,
                dimension=dimension,
                sensitivity=release.clip.sensitivity(step.public.step),
                std=std,
                noise_norm=std * math.sqrt(dimension),
                remark=step.codec(index).remark,
            )
        )
    return tuple(reports)


def _without_remark(release: ReleaseReport) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(release).items() if name != "remark"}


def _unit(sampler: PoissonSampler) -> str:
    users = sampler.users
    if users is None:
        return "each record"
    how = "averaged" if users.pooled == "mean" else "added"
    return f"each user with all records, of which a step uses {users.most_records} at most, {how} before the clip"


def _independence(recorder: Recorder, check: LoopCheck, inputs: Sequence[Any]) -> str:
    found = f"{recorder.independence}; {check}"
    if not inputs:
        return found
    check_independence(recorder.model, *inputs)
    return f"{found}; no output moved when each record of the given batch was replaced"


def _table(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "  (nothing measured yet: run a step first)"
    cells = [list(rows[0]), *[[_cell(value) for value in row.values()] for row in rows]]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

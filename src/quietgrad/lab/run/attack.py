"""All attacks on a finished run: what it claimed, what each attack measured, one verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor, nn

import quietgrad as qg
from quietgrad.accounting.events import Phase
from quietgrad.accounting.planning import plan, whole_plan
from quietgrad.accounting.pld import is_private
from quietgrad.audit import (
    AuditReport,
    MembershipReport,
    NeighbourReport,
    audit_mechanism,
    audit_one_run,
    compare_neighbours,
    threshold_attack,
)
from quietgrad.audit.shadows import losses
from quietgrad.lab.errors import LabError
from quietgrad.lab.run.folder import RunFolder
from quietgrad.lab.run.methods import build_mechanism
from quietgrad.lab.run.metrics import logits_of
from quietgrad.lab.run.presets import QUIET
from quietgrad.lab.run.setup import Setup, momentum_of, set_up
from quietgrad.lab.run.table_probe import set_up_probe
from quietgrad.lab.run.train import losses_of

MOST_STEPS = 300
"""Steps of the canary audit; each gets as many canaries as the confidence needs."""

Progress = Callable[[str, int, int], None]
"""(attack, done, total)."""


@dataclass(frozen=True)
class AuditedRun:
    """A run as its folder tells it.

    Args:
        whole: everything that was released; for the linear probe also the statistics that came before training.
    """

    setup: Setup
    mechanism: qg.Mechanism
    whole: tuple[Phase, ...]

    @property
    def phases(self) -> tuple[Phase, ...]:
        return plan(self.mechanism, self.setup.batches)

    @property
    def private(self) -> bool:
        return is_private(self.phases)

    @property
    def facts(self) -> dict[str, Any]:
        """What every attack on the mechanism has to know."""
        return {
            "records": self.setup.batches.units,
            "most_records": self.setup.config.data.most_records,
            "rate": self.setup.batches.rate,
            "steps": self.setup.batches.steps,
            "delta": self.setup.config.privacy.delta,
        }

    @property
    def participation(self) -> dict[str, Any]:
        """How records take part, as `PoissonBatches` takes it."""
        training = self.setup.config.training
        return {
            "groups": self.setup.batches.sampler.groups,
            "at_most": training.at_most,
            "once_an_epoch": training.once_an_epoch,
        }


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """The reports of all attacks on a run."""

    method: str
    reports: tuple[AuditReport, ...]
    neighbours: NeighbourReport
    membership: MembershipReport
    left_out: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """One violation is enough."""
        verdicts = {report.verdict for report in self.reports} | {self.membership.verdict}
        if "violated" in verdicts or not self.neighbours.passed:
            return "violated"
        return "not private" if "not private" in verdicts else "consistent"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "method": self.method,
            "verdict": self.verdict,
            "attacks": [report.as_dict() for report in self.reports],
            "neighbouring_runs": self.neighbours.as_dict(),
            "membership": self.membership.as_dict(),
            **({"left_out": list(self.left_out)} if self.left_out else {}),
        }

    def __str__(self) -> str:
        parts: Sequence[object] = (*self.reports, self.neighbours, self.membership)
        return "\n".join([*map(str, parts), *self.left_out, f"verdict: {self.verdict}"])


def open_run(path: Path, *, data_dir: Path | None = None) -> AuditedRun:
    """Return the run in a folder, with the weights it ended with."""
    folder = RunFolder(path)
    if not folder.exists:
        inside = sorted(str(config.parent) for config in path.rglob("config.toml"))[:5]
        hint = f" Runs inside: {', '.join(inside)}." if inside else " Make one with quietgrad train --out."
        raise LabError(f"{path} is not a run: it has no config.toml.{hint}")
    if folder.config.method.name == QUIET:
        setup, mechanism, whole = _open_linear_probe(folder, data_dir)
    else:
        setup = set_up(folder.config, data_dir=data_dir)
        mechanism = build_mechanism(
            setup.config.method,
            setup.config.privacy,
            setup.parts,
            setup.model,
            setup.batches,
            momentum_of(setup.config.training),
        )
        whole = plan(mechanism, setup.batches)
    if len(setup.parts.test) == 0:
        raise LabError(
            "Membership inference compares training records with test records, and data.test is 0. Audit a run with "
            "test rows."
        )
    setup.model.load_state_dict(_weights(folder, setup.model))
    return AuditedRun(setup, mechanism, whole)


def _open_linear_probe(
    folder: RunFolder, data_dir: Path | None
) -> tuple[Setup, qg.Mechanism, tuple[Phase, ...]]:
    """Return the training of a finished run on the features that it released; nothing is released again."""
    if not folder.finished:
        raise LabError(f"{folder.path} is not finished. Finish it with quietgrad train --resume.")
    setup, program, statistics = set_up_probe(folder.config, folder, resume=True, data_dir=data_dir)
    with closing(statistics.ledger):
        return setup, program.training, whole_plan(program, setup.batches)


def audit_run(run: AuditedRun, *, confidence: float, one_run_canaries: int, progress: Progress) -> RunAudit:
    """Step canaries, one-run canaries, neighbouring runs and membership inference.

    Neighbouring runs and membership inference read private records; what they report is about the attacks, and is not
    covered by ε.
    """
    reports, left_out = list[AuditReport](), list[str]()
    once = run.participation["once_an_epoch"]
    if once:
        left_out.append(
            "canaries: left out. What they show has no price from below for records that take part once an epoch."
        )
    elif isinstance(run.mechanism.noise, qg.BandedNoise):
        left_out.append(
            "step canaries: left out. They read steps one by one, and banded noise spans several."
        )
    else:
        steps = audit_mechanism(
            run.setup.model,
            run.mechanism,
            audited_steps=min(MOST_STEPS, run.setup.batches.steps),
            confidence=confidence,
            claimed=run.phases,
            progress=lambda done, total: progress("step canaries", done, total),
            **run.facts,
        )
        reports.append(steps)
    if one_run_canaries and run.private and not once:
        one_run = audit_one_run(
            run.setup.model,
            run.mechanism,
            canaries=one_run_canaries,
            confidence=confidence,
            groups=run.participation["groups"],
            claimed=run.phases,
            progress=lambda done, total: progress("one-run canaries", done, total),
            **run.facts,
        )
        reports.append(one_run)
    progress("neighbouring runs", 0, 1)
    neighbours = _neighbours(run)
    progress("neighbouring runs", 1, 1)
    membership = _membership(run, confidence)
    progress("membership inference", 1, 1)
    return RunAudit(
        method=run.mechanism.name,
        reports=tuple(reports),
        neighbours=neighbours,
        membership=membership,
        left_out=tuple(left_out),
    )


def _neighbours(run: AuditedRun) -> NeighbourReport:
    config = run.setup.config
    return compare_neighbours(
        run.setup.model,
        run.mechanism,
        run.setup.parts.private,
        lambda model, x, y: losses_of(model, x, y, config),
        rate=run.setup.batches.rate,
        deterministic=True,
        unit=run.setup.parts.users,
        most_records=config.data.most_records,
        pooled=config.data.pooled,
        participation=run.participation,
    )


def _membership(run: AuditedRun, confidence: float) -> MembershipReport:
    """Losses of training records, one of each user where users are protected, against those of test records."""
    model, parts = run.setup.model, run.setup.parts
    model.eval()
    x, y = parts.private.tensors
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    if parts.users is not None:
        order = order[np.sort(np.unique(parts.users[order.numpy()], return_index=True)[1])]
    chosen = order[: len(parts.test)]
    return threshold_attack(
        -_losses(model, x[chosen], y[chosen]),
        -_losses(model, *parts.test.tensors),
        phases=run.whole if run.private else None,
        confidence=confidence,
    )


def _losses(model: nn.Module, x: Tensor, y: Tensor) -> Float64[ndarray, " n"]:
    """Cross entropy, or the squared error of numbers; 0 without a label."""
    if not y.is_floating_point():
        return losses(model, x, y)
    said = logits_of(model, x)[:, 0].double()
    errors: ndarray = torch.where(y.isfinite(), (said - y.nan_to_num(0.0)).square(), 0.0).numpy()
    return errors


def _weights(folder: RunFolder, model: nn.Module) -> dict[str, Any]:
    file = folder.path / "model.pt"
    if file.exists():
        weights: dict[str, Any] = torch.load(file, weights_only=True)
    else:
        saved = folder.load_checkpoint()
        if saved is None:
            raise LabError(
                f"{folder.path} has neither model.pt nor checkpoint.pt: there is no model to attack. Finish the run "
                "with quietgrad train --resume."
            )
        weights = saved["model"]
    if weights.keys() != model.state_dict().keys():
        raise LabError(f"The weights in {folder.path} are of another model. Put back those of this run.")
    return weights

"""The one-run audit with gradient canaries: m records that do or do not take part in a whole run.

Each canary is a member with probability ½; a member is drawn into every step with the run's rate q, like any record.
Its score is the log-likelihood ratio of all steps, Σ_t log(1 − q + q·exp(s·y_t − s²/2)), y_t the release of step t read
out along the canary and s its strength there. Under banded noise of b groups a canary is in one group and is drawn
every b steps with probability b·q; its releases are made white first, CᵀC·y for the matrix C of the noise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from numpy import ndarray
from torch import Tensor, nn

from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.space import Shapes
from quietgrad._gradients.stages import BlockwiseGrads, ClippedSum
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.banded import BandedNoise
from quietgrad._noise.base import Noise
from quietgrad._noise.gaussian import Gaussian
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad.accounting.events import Phase
from quietgrad.accounting.planning import plan
from quietgrad.audit.canaries import CONFIDENCE, Progress, move_along
from quietgrad.audit.each_row import clipped_rows
from quietgrad.audit.one_run_report import one_run_report
from quietgrad.audit.report import AuditReport
from quietgrad.audit.step_canaries import LastRelease
from quietgrad.audit.user_canaries import as_users, empty_draws

FAR = 1_000.0
"""Canaries are this many times their largest bound long: what is left of them in any release is beyond its bound."""

ASSUMPTIONS = (
    "an attacker who sees every release and knows the other records, but neither other canaries nor the draws",
    "nothing about the distribution of the noise or the composition",
)


def audit_one_run(
    model: nn.Module,
    mechanism: Mechanism,
    *,
    records: int,
    rate: float,
    steps: int,
    delta: float,
    canaries: int = 400,
    confidence: float = CONFIDENCE,
    learning_rate: float = 0.01,
    privatizer: Callable[..., Privatizer] = Privatizer,
    seed: int | None = None,
    progress: Progress | None = None,
    most_records: int | None = None,
    groups: int = 1,
    claimed: Sequence[Phase] | None = None,
    **options: Any,
) -> AuditReport:
    """Run all steps once with gradient canaries and guess which were members. Arguments as in `audit_mechanism`.

    Args:
        groups: of the batches, for banded noise.
        claimed: what the run costs; plain Poisson draws, or those of groups, if left out.

    Returns:
        the lower bound on ε beside the claim.
    """
    rng = np.random.default_rng(seed)
    sampler = empty_draws(records, steps, rate=rate, most_records=most_records, groups=groups)
    own = copy.deepcopy(model)
    with privatizer(own, mechanism, sampler, research=True, public_seed=seed, **options) as private:
        run = RunCanaries(private, canaries=canaries, rng=rng)
        for step, _ in enumerate(sampler, start=1):
            run.release()
            move_along(private, learning_rate)
            if progress is not None:
                progress(step, steps)
    return one_run_report(
        "one-run gradient canaries",
        run.scores,
        run.members,
        plan(mechanism, sampler) if claimed is None else claimed,
        delta=delta,
        confidence=confidence,
        assumptions=ASSUMPTIONS,
        independent=run.independent,
    )


class RunCanaries:
    """Canaries that live through a run.

    Args:
        private: in research mode.
        canaries: m; fewer if no parameter has so many coordinates.
        rng: of membership and of the draws.
    """

    def __init__(self, private: Privatizer, *, canaries: int, rng: np.random.Generator) -> None:
        self._private, self._rng = private, rng
        space = {name: p.shape for name, p in private.parameters.items()}
        count = min(canaries, max(shape.numel() for shape in space.values()))
        like = next(iter(private.parameters.values()))
        self._rows = {name: rows.to(like) for name, rows in disjoint_rows(space, count).items()}
        self.members: Bool[ndarray, " m"] = rng.random(count) < 0.5
        self._groups = np.arange(count) % private.sampler.groups
        self._signals: list[Float64[ndarray, " m"]] = []
        self._squares: list[Float64[ndarray, " m"]] = []
        self._last = LastRelease()
        # A selection is made of all records: what it shows of one canary depends on the others.
        self.independent = isinstance(private.mechanism.noise, Gaussian | BandedNoise)
        """Whether no score depends on another canary: releases so far had coordinates of each canary's own."""
        private.watch(self._last)

    def release(self) -> None:
        """One step: insert the members that are drawn, release, and read every canary out."""
        private, step = self._private, self._private.begin_step()
        turn = self._groups == private.step % private.sampler.groups
        releases = private.mechanism.releases
        far = FAR * max(release.clip.sensitivity(private.step) for release in releases)
        grads = _as_grads(self._rows, far)
        alone = [
            clipped_rows(release.clip, step.codec(index).encode(grads), private.step)
            for index, release in enumerate(releases)
        ]
        clean = step.sums
        drawn = np.flatnonzero(self.members & turn & (self._rng.random(len(self.members)) < self._rate))
        if len(drawn):
            step.add(as_users(private, _as_grads(self._drawn(torch.from_numpy(drawn)), far)))
        private.release()
        signal, squared = self._readout(alone, clean)
        self._signals.append(signal)
        self._squares.append(squared)

    @property
    def _rate(self) -> float:
        """With which a canary is drawn when it is its group's turn."""
        return self._private.sampler.groups * self._private.sampler.rate

    @property
    def scores(self) -> Float64[ndarray, " m"]:
        """The log-likelihood ratio of each canary over all steps."""
        signals, squares = np.stack(self._signals), np.stack(self._squares)
        white, kept = whitening(self._private.mechanism.noise, len(signals))
        exponent = white @ signals - kept[:, None] * squares / 2
        likelier = np.log1p(self._rate * np.expm1(np.minimum(exponent, 500.0)))
        turns = np.arange(len(signals))[:, None] % self._private.sampler.groups == self._groups
        total: Float64[ndarray, " m"] = np.where(turns, likelier, 0.0).sum(0)
        return total

    def _drawn(self, canaries: Int[Tensor, " k"]) -> dict[str, Float[Tensor, "k *shape"]]:
        return {name: rows[canaries] for name, rows in self._rows.items()}

    def _readout(
        self, alone: list[Blocks], clean: list[ClippedSum]
    ) -> tuple[Float64[ndarray, " m"], Float64[ndarray, " m"]]:
        """⟨c_m, y⟩ and ‖c_m‖² over all releases, whitened by the claimed noise."""
        divisor = self._private.sampler.expected_batch
        signal, squared = np.zeros(len(self.members)), np.zeros(len(self.members))
        for rows, known, released in zip(alone, clean, self._last.released, strict=True):
            std = released.std * divisor
            for name, each in rows.items():
                seen = released.blocks[name]
                shown = (seen != 0).flatten()  # a selection releases exact zeros where it shows nothing
                left = ((seen.double() * divisor - known.blocks[name]) / std).flatten() * shown
                flat = each.flatten(1).double() * shown / std
                self.independent &= bool((flat != 0).sum(0).max() <= 1)
                signal += (flat @ left).cpu().numpy()
                squared += flat.square().sum(1).cpu().numpy()
        return signal, squared


def whitening(noise: Noise, steps: int) -> tuple[Float64[ndarray, "t t"], Float64[ndarray, " t"]]:
    """Return CᵀC, which turns releases into the statistics of what each step added, and the part that shows of it."""
    if not isinstance(noise, BandedNoise):
        return np.eye(steps), np.ones(steps)
    c = np.array(noise.coefficients) / noise.norm
    banded = np.sum([np.diag(np.full(steps - j, c[j]), -j) for j in range(min(len(c), steps))], axis=0)
    return banded.T @ banded, np.asarray((banded**2).sum(0))


def disjoint_rows(space: Shapes, count: int) -> dict[str, Float[Tensor, "m *shape"]]:
    """Unit vectors with disjoint supports: canary m has every count-th coordinate of each large enough parameter."""
    rows = {}
    for name, shape in space.items():
        each = torch.zeros(count, shape.numel())
        whole = shape.numel() // count * count
        positions = torch.arange(whole)
        each[positions % count, positions] = 1.0
        rows[name] = each.reshape(count, *shape)
    length = torch.stack([each.flatten(1).square().sum(1) for each in rows.values()]).sum(0).sqrt()
    return {name: each / length.view(-1, *[1] * (each.dim() - 1)) for name, each in rows.items()}


def _as_grads(rows: dict[str, Tensor], scale: float) -> BlockwiseGrads:
    count = len(next(iter(rows.values())))
    return BlockwiseGrads({name: DenseGrad(scale * each) for name, each in rows.items()}, count)

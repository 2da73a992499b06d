"""Inserts canaries into the steps of a Privatizer and reads them out of what was released.

One step: y = Σ_m x_m c_m + z after whitening (each release divided by its claimed std, the known clean sum and divisor
taken out), with c_m what canary m adds to all releases, x_m ∈ {0, 1} a fair coin and z the noise, N(0, 1) a coordinate
if the claim is true. Read out along orthonormal q_m (QR of the c_m, so that no two scores share noise):

    score_m = ⟨q_m, y − Σ_{l≠m} x_l c_l⟩ = x_m·strength_m + N(0, 1),     strength_m = ⟨q_m, c_m⟩ = 1/σ at best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy import ndarray
from torch import Tensor

from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import PerSampleGrads, Released
from quietgrad._privatizer.privatizer import Privatizer
from quietgrad._privatizer.research import Observer
from quietgrad.audit.canary_design import Canary, Group, as_samples, capacity, design
from quietgrad.audit.each_row import clipped_rows
from quietgrad.audit.user_canaries import as_users

KEPT_NOISE = 2048
"""Coordinates at each end of a step's noise that are kept to compare steps."""


@dataclass(frozen=True, kw_only=True)
class StepScores:
    """What one step showed.

    Args:
        included: the coins x.
        scores: see above, in units of the claimed noise.
        strengths: what an included canary adds to its score.
        norms: ‖c_m‖, what it adds to the whole release; larger than its strength where canaries overlap.
        groups: of each canary, the block it concentrates on in each release.
        noise: some coordinates of the noise that is left when all that is known is taken out.
    """

    included: Bool[ndarray, " m"]
    scores: Float64[ndarray, " m"]
    strengths: Float64[ndarray, " m"]
    norms: Float64[ndarray, " m"]
    groups: tuple[tuple[Group, ...], ...]
    noise: Float64[ndarray, " kept"]


class LastRelease(Observer):
    """Keeps the releases of the last step."""

    def __init__(self) -> None:
        self.released: list[Released] = []

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.released = released


class StepCanaries:
    """Canaries for one step after the other of a run.

    Args:
        private: in research mode. What its batches add is subtracted, so any batches will do, empty ones too.
        canaries: M per step, at most as many as the smallest release has dimensions.
        seed: of the coins and directions.
    """

    def __init__(self, private: Privatizer, *, canaries: int, seed: int | None = None) -> None:
        self._private, self._wanted = private, canaries
        self._coins = np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(int(self._coins.integers(2**62)))
        self._turn = 0
        self._last = LastRelease()
        private.watch(self._last)

    def release(self) -> StepScores:
        """Insert canaries into the batch at hand, release it, and read them out."""
        canaries = self._design()
        included = self._coins.random(len(canaries)) < 0.5
        clean = [_flat(total.blocks) for total in self._private.begin_step().sums]
        alone = self._alone(as_samples(canaries))
        chosen = [canary for canary, inside in zip(canaries, included, strict=True) if inside]
        if chosen:
            # As a micro-batch of its own, through the run's own codecs, clips and sums.
            self._private.begin_step().add(as_users(self._private, as_samples(chosen)))
        self._private.release()
        return self._read(canaries, included, clean, alone)

    def _design(self) -> list[Canary]:
        public, mechanism = self._private.begin_step().public, self._private.mechanism
        count = min(self._wanted, capacity(mechanism, public))
        canaries = design(mechanism, public, count, turn=self._turn, generator=self._generator)
        self._turn += count
        return canaries

    def _alone(self, rows: PerSampleGrads) -> list[Float[Tensor, "m d"]]:
        """What each canary adds to each release."""
        step = self._private.begin_step()
        return [
            _flat_rows(clipped_rows(release.clip, step.codec(index).encode(rows), self._private.step))
            for index, release in enumerate(self._private.mechanism.releases)
        ]

    def _read(
        self,
        canaries: list[Canary],
        included: Bool[ndarray, " m"],
        clean: list[Float[Tensor, " _"]],
        alone: list[Float[Tensor, "m _"]],
    ) -> StepScores:
        divisor = self._private.sampler.expected_batch
        noise, signals = [], []
        for j, released in enumerate(self._last.released):
            seen = _flat(released.blocks)
            shown = seen != 0  # a selection releases exact zeros where it shows nothing
            each = alone[j] * shown
            known = clean[j] * shown + torch.from_numpy(included).to(each.dtype) @ each
            std = released.std * divisor
            noise.append((seen * divisor - known) / std)
            signals.append(each / std)
        left, contributions = torch.cat(noise), torch.cat(signals, dim=1)
        readout, strengths, norms = _orthogonal_readout(contributions, left)
        return StepScores(
            included=included,
            scores=readout + included * strengths,
            strengths=strengths,
            norms=norms,
            groups=tuple(canary.groups for canary in canaries),
            noise=_ends(left),
        )


def _orthogonal_readout(
    contributions: Float[Tensor, "m d"], noise: Float[Tensor, " d"]
) -> tuple[Float64[ndarray, " m"], Float64[ndarray, " m"], Float64[ndarray, " m"]]:
    """(⟨q_m, noise⟩, ⟨q_m, c_m⟩, ‖c_m‖) with q = L⁻¹c, LLᵀ = ccᵀ: orthonormal, so that no two scores share noise.

    The price is the part of c_m that lies along other canaries.
    """
    # In float64: nearly parallel canaries make a Gram matrix that float32 rounds to an indefinite one.
    exact = contributions.double()
    gram = exact @ exact.T
    lower = torch.linalg.cholesky(gram + 1e-9 * gram.trace() * torch.eye(len(gram), dtype=gram.dtype))
    along = torch.linalg.solve_triangular(lower, (exact @ noise.double())[:, None], upper=False)
    return along[:, 0].numpy(), lower.diagonal().numpy(), gram.diagonal().sqrt().numpy()


def _flat(blocks: Blocks) -> Float[Tensor, " d"]:
    return torch.cat([block.detach().flatten() for block in blocks.values()]).cpu()


def _flat_rows(blocks: Blocks) -> Float[Tensor, "m d"]:
    return torch.cat([rows.flatten(1) for rows in blocks.values()], dim=1).cpu()


def _ends(noise: Float[Tensor, " d"]) -> Float64[ndarray, " kept"]:
    ends = noise if len(noise) <= 2 * KEPT_NOISE else torch.cat([noise[:KEPT_NOISE], noise[-KEPT_NOISE:]])
    kept: Float64[ndarray, " kept"] = ends.double().numpy()
    return kept

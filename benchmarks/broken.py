"""Private training broken on purpose, one bug each: what the audits must catch.

Those that the run-time check of law 0 would stop switch it off, so that the audit has to see them by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._release.releaser import AccountedDraw, Releaser
from quietgrad.accounting.events import GaussianEvent
from quietgrad.accounting.planning import Charge


@dataclass(frozen=True, kw_only=True)
class HalfNoise(qg.Gaussian):
    """Draws half the noise that it states."""

    def release(
        self, total: qg.ClippedSum, draw: qg.NoiseDraw, state: qg.NoiseState
    ) -> tuple[qg.Released, qg.NoiseState]:
        released, state = super().release(total, replace(draw, std=draw.std / 2), state)
        return replace(released, std=2 * released.std), state


@dataclass(frozen=True, kw_only=True)
class SilentBlock(qg.Gaussian):
    """Forgets the noise of one block."""

    block: str

    def release(
        self, total: qg.ClippedSum, draw: qg.NoiseDraw, state: qg.NoiseState
    ) -> tuple[qg.Released, qg.NoiseState]:
        released, state = super().release(total, draw, state)
        bare = {name: value / draw.divisor for name, value in total.blocks.items() if name == self.block}
        return replace(released, blocks=released.blocks | bare), state


@dataclass(frozen=True)
class NoClip(qg.FlatClip):
    """Declares a bound and does not keep it."""

    def weights(self, grads: qg.PerSampleGrads, step: int) -> dict[str, Tensor]:
        return dict.fromkeys(grads.space, torch.ones(grads.samples, dtype=torch.float64))

    def __call__(self, grads: qg.PerSampleGrads, step: int) -> qg.ClippedSum:
        ones = torch.ones(grads.samples, dtype=torch.float64)
        return qg.ClippedSum(blocks=grads.weighted_sum(ones), sensitivity=self.sensitivity(step))


@dataclass(frozen=True, kw_only=True)
class ForgottenBands(qg.BandedNoise):
    """Has an event without bands, so that a record may take part in every step."""

    def event(self, noise_multiplier: float, step: int) -> GaussianEvent:
        return GaussianEvent(noise_multiplier=noise_multiplier)


class OneReleaseAccounted(qg.Mechanism):
    """Every release gets the noise of a mechanism that makes it alone."""

    def std(self, release: qg.Release, step: int) -> float:
        return self.multiplier(step) * release.clip.sensitivity(step)

    @classmethod
    def of(cls, mechanism: qg.Mechanism) -> OneReleaseAccounted:
        return cls(**{field.name: getattr(mechanism, field.name) for field in fields(mechanism)})


class UncheckedDraw(AccountedDraw):
    def check_room(self, precision: float) -> None:
        pass

    def finish(self) -> None:
        pass


class UncheckedReleaser(Releaser):
    def record(self, charge: Charge, *, step: int) -> AccountedDraw:
        checked = super().record(charge, step=step)
        return UncheckedDraw(self, checked.std(1.0), step)


class Unchecked(qg.Privatizer):
    """Without the run-time check of law 0."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._run.releaser = UncheckedReleaser(**vars(self._run.releaser))


class DividedStep(qg.Step):
    """Divides by a number of its own."""

    divisor: float

    def release(self, draw: AccountedDraw) -> list[qg.Released]:
        draw.divisor = self.divisor
        return super().release(draw)


class BatchSizeDivisor(qg.Privatizer):
    """Divides by the number of records drawn instead of by qN."""

    def _make_step(self, public: qg.Public) -> qg.Step:
        step = DividedStep(self.mechanism, public, self._source)
        step.divisor = max(self.sampler.rows(self.step) or 0, 1)
        return step


class SkipsEmptyBatches(qg.Privatizer):
    """Releases nothing for an empty batch, which tells that it was empty."""

    def release(self) -> None:
        if self.sampler.rows(self.step):
            super().release()
        else:
            self._end_step()


class ReusedSeed(qg.NoiseSource):
    """Starts again from the same seed at every release."""

    private = True
    std = qg.SeededSource.std

    def fill(self, out: Tensor) -> None:
        qg.SeededSource(1).fill(out)

    def bits(self, count: int) -> Tensor:
        return qg.SeededSource(1).bits(count)


def half_noise(mechanism: qg.Mechanism) -> qg.Mechanism:
    """The mechanism with half the noise it states."""
    return replace(mechanism, noise=HalfNoise())


def silent_block(mechanism: qg.Mechanism, block: str) -> qg.Mechanism:
    """The mechanism without noise on one block."""
    return replace(mechanism, noise=SilentBlock(block=block))


def no_clip(mechanism: qg.Mechanism) -> qg.Mechanism:
    """The mechanism without clipping; its bounds are still what is declared."""
    releases = tuple(
        replace(release, clip=NoClip(release.clip.sensitivity(0))) for release in mechanism.releases
    )
    return replace(mechanism, releases=releases)

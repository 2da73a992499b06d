"""Selection + Gaussian: GIP's noise, which also decides what is released at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from quietgrad.accounting import events
from quietgrad.gradients.blocks import Blocks, flatten, unflatten
from quietgrad.gradients.stages import ClippedSum, Released
from quietgrad.methods.gip.selection import Grouping
from quietgrad.noise.base import Noise, NoiseDraw
from quietgrad.noise.sources import HardenedSource
from quietgrad.schedules import Schedule, value_at


@dataclass(frozen=True, kw_only=True)
class SelectedGaussian(Noise):
    """(total + N(0, std²·I)) ⊙ I, the indices I drawn from the clipped sum by the Mallows selector.

    Formal guarantee: the step is the product of a Gaussian mechanism of multiplier σ and one Mallows selection a group,
    whatever the sum's top-k sets are (a removed record may change all of them at once); the accountant composes their
    privacy losses and subsamples the product.

    Args:
        grouping: the coordinates in groups.
        theta: θ, how much the selector cares for the true top-k; 0 is random-k.
        keep: the part of each group that is released, over steps.
    """

    grouping: Grouping
    theta: float
    keep: float | Schedule

    def multiplier(self, noise_multiplier: float, step: int) -> float:
        return noise_multiplier

    def event(self, noise_multiplier: float, step: int) -> events.Event:
        gaussian = events.GaussianEvent(noise_multiplier=noise_multiplier)
        selections = self.grouping.selections(self.theta, value_at(self.keep, step))
        return events.JointEvent(gaussian=gaussian, selections=selections)

    def release(self, total: ClippedSum, draw: NoiseDraw) -> Released:
        if isinstance(draw.source, HardenedSource):
            raise ValueError(
                "noise_source='hardened' is proved for Gaussian releases, not for a choice of indices. Use the default "
                "source with gip, or a method without selection (random_k, top_groups)."
            )
        # The choice looks at the whole sum, so one rank makes it, together with all of the noise.
        selected = draw.reducer.reduce_to_rank0(total.blocks, lambda blocks: self._selected(blocks, draw))
        return Released(
            blocks={name: block / draw.divisor for name, block in selected.items()},
            std=draw.std / draw.divisor,
            sensitivity=total.sensitivity / draw.divisor,
        )

    def _selected(self, blocks: Blocks, draw: NoiseDraw) -> Blocks:
        values = flatten(blocks)
        # One draw for the choice and the noise; noise on every coordinate keeps the count independent of the choice.
        draws = draw.source.normals(self.grouping.draws + values.numel())
        choice, noise = draws[: self.grouping.draws], draws[self.grouping.draws :]
        keep = value_at(self.keep, draw.step)
        chosen = self.grouping.select(values.cpu(), theta=self.theta, keep=keep, normals=choice)
        noisy = values + (draw.std * noise).to(values.device, values.dtype)
        return unflatten(torch.where(chosen.to(values.device), noisy, 0.0), blocks)

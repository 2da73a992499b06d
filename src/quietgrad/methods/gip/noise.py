"""Selection + Gaussian: GIP's noise, which also decides what is released at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import Blocks, flatten, unflatten
from quietgrad._gradients.stages import ClippedSum, Released
from quietgrad._kernels.transfer import upload
from quietgrad._noise.base import Noise, NoiseDraw, NoiseState
from quietgrad._noise.gaussian import on_grid
from quietgrad._noise.sources import HardenedSource
from quietgrad.accounting import events
from quietgrad.accounting.planning import Steps
from quietgrad.methods.gip.selection import Grouping
from quietgrad.methods.gip.theta import theta_for_budget
from quietgrad.schedules import Schedule, value_at


@dataclass(frozen=True, kw_only=True)
class SelectedGaussian(Noise):
    """(total + N(0, std²·I)) ⊙ I, the indices I drawn from the clipped sum by the Mallows selector.

    Formal guarantee: the step is the product of a Gaussian mechanism of multiplier σ and one Mallows selection a group,
    whatever the sum's top-k sets are (a removed record may change all of them at once); the accountant composes their
    privacy losses and subsamples the product.

    Args:
        grouping: the coordinates in groups.
        keep: the part of each group that is released, over steps.
        theta: θ, how much the selector cares for the true top-k; 0 is random-k; None until calibrated.
        index_share: the part of ε that θ is calibrated to.
    """

    one_release: ClassVar[bool] = True

    grouping: Grouping
    keep: float | Schedule
    theta: float | None = None
    index_share: float = 0.0

    def multiplier(self, noise_multiplier: float, step: int) -> float:
        return noise_multiplier

    def event(self, noise_multiplier: float, step: int) -> events.Event:
        gaussian = events.GaussianEvent(noise_multiplier=noise_multiplier)
        selections = self.grouping.selections(self._theta, value_at(self.keep, step))
        return events.JointEvent(gaussian=gaussian, selections=selections)

    def for_budget(self, batches: Steps, *, epsilon: float, delta: float) -> SelectedGaussian:
        """The largest θ for which the selections alone cost index_share·ε; a θ that is set stays."""
        if self.theta is not None:
            return self
        share = self.index_share * epsilon
        theta = theta_for_budget(self.grouping, self.keep, batches, epsilon=share, delta=delta)
        return replace(self, theta=theta)

    @property
    def _theta(self) -> float:
        if self.theta is None:
            raise ValueError(
                "gip has no θ yet: it is a part of ε. Calibrate with qg.calibrate(mechanism, batches, epsilon=…, "
                "delta=…), or pass theta=… to gip and set the noise by hand."
            )
        return self.theta

    def release(self, total: ClippedSum, draw: NoiseDraw, state: NoiseState) -> tuple[Released, NoiseState]:
        if isinstance(draw.source, HardenedSource):
            raise PrivacyError(
                "noise_source='hardened' is made for Gaussian releases, not for a choice of indices. Use the default "
                "source with gip, or a method without selection (random_k, top_groups)."
            )
        if draw.std == 0.0:
            chosen = self._selected_by_one(total.wide(), draw)
            bare = {name: (b / draw.divisor).to(total.released_in(name)) for name, b in chosen.items()}
            return Released(blocks=bare, std=0.0, sensitivity=total.sensitivity / draw.divisor), state
        wide = on_grid(total, draw)
        steps = self._selected_by_one({name: wide.grid.steps(b) for name, b in total.blocks.items()}, draw)
        scale = wide.grid.step / draw.divisor
        blocks = {name: (block.double() * scale).to(total.released_in(name)) for name, block in steps.items()}
        return wide.make_release(blocks, draw.divisor), state

    def _selected_by_one(self, blocks: Blocks, draw: NoiseDraw) -> Blocks:
        """The choice looks at the whole sum, so one rank makes it, together with all of the noise."""
        return draw.reducer.reduce_to_rank0(blocks, lambda summed: self._selected(summed, draw))

    def _selected(self, blocks: Blocks, draw: NoiseDraw) -> Blocks:
        values = flatten(blocks)
        chosen = self.grouping.select(
            values.cpu(),
            theta=self._theta,
            keep=value_at(self.keep, draw.step),
            bits=draw.source.bits(self.grouping.draws),
        )
        if draw.std > 0.0:
            # On every coordinate: how much is drawn does not depend on the choice.
            values = values + upload(draw.source.integers(values.numel()), values.device)
        return unflatten(torch.where(upload(chosen, values.device), values, 0), blocks)

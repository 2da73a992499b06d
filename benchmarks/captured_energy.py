"""How much of a gradient several choosers of coordinates hold, along one run: what benchmarks.choosers measures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks, flatten
from quietgrad._gradients.space import Shapes
from quietgrad._representations.base import State
from quietgrad._representations.masks.coordinates import is_kept
from quietgrad._representations.masks.mask import MaskCodec
from quietgrad.methods.gip.selection import Grouping


@dataclass(frozen=True)
class Selector:
    """GIP's chooser as a subject of measurement: the Mallows selector on the clipped sum."""

    grouping: Grouping
    theta: float
    keep: float

    def choose(self, gradient: Tensor, step: int) -> Tensor:
        bits = qg.SeededSource(step).bits(self.grouping.draws)
        return self.grouping.select(gradient.float(), theta=self.theta, keep=self.keep, bits=bits)


@dataclass(frozen=True, kw_only=True)
class EnergyReport:
    """One step.

    Args:
        gradient_to_noise: ‖Σ clip(g_i)‖ / (std·√p), the released gradient's length against its noise.
        captured: per chooser, the part of ‖Σ clip(g_i)‖² in the coordinates that it chose.
    """

    step: int
    gradient_to_noise: float
    captured: dict[str, float]


class CapturedEnergy(qg.Observer):
    """How much of the clipped gradient several choosers hold, all watching one run of a full-gradient method.

    Args:
        choosers: name → a mask, or GIP's `Selector`.
        whole_history: masks learn from all coordinates of the run's releases; otherwise from those that they chose, as
            if they had masked the run themselves.
    """

    def __init__(
        self, choosers: Mapping[str, qg.Representation | Selector], *, whole_history: bool = False
    ) -> None:
        self.choosers, self.whole_history = dict(choosers), whole_history
        self.reports: list[EnergyReport] = []
        self._states: dict[str, State] = {}
        self._sum: Tensor | None = None
        self._public: qg.Public | None = None

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        release = mechanism.releases[0]
        part = flatten(release.clip(public.codec(release.representation).encode(grads), public.step).blocks)
        self._sum = part if self._sum is None else self._sum + part
        self._public = public

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
        total, public = self._sum, self._public
        self._sum = self._public = None
        if total is None or public is None:
            return
        multiplier = released[0].std / released[0].sensitivity
        noise = multiplier * math.sqrt(len(total))
        captured = {}
        for name, chooser in self.choosers.items():
            kept = self._kept(name, chooser, total, public, released[0])
            captured[name] = float(total[kept].square().sum() / total.square().sum())
        self.reports.append(
            EnergyReport(step=step, gradient_to_noise=float(total.norm()) / noise, captured=captured)
        )

    def _kept(
        self,
        name: str,
        chooser: qg.Representation | Selector,
        total: Tensor,
        public: qg.Public,
        released: qg.Released,
    ) -> Tensor:
        if isinstance(chooser, Selector):
            return chooser.choose(total, public.step)
        known = self._states.get(name)
        codec, state = chooser.refresh(public, chooser.init(public) if known is None else known)
        assert isinstance(codec, MaskCodec), f"{name} is not a mask"
        learns = MaskCodec(public.space, _everything(public.space)) if self.whole_history else codec
        seen = {block: released.blocks[block].flatten()[learns.kept[block]] for block in learns.space}
        part = qg.Released(blocks=seen, std=released.std, sensitivity=released.sensitivity)
        learned = chooser.observe(public, {**state, "kept": learns.kept}, part)
        self._states[name] = {**learned, "kept": codec.kept}
        return is_kept(codec.kept, public.space)


def _everything(space: Shapes) -> dict[str, Tensor]:
    return {name: torch.arange(shape.numel()) for name, shape in space.items()}

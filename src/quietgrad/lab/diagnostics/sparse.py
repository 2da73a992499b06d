"""What sparse methods keep of the gradient (figures 2 and 3 of Random Freeze, 1 and 4 of GIP; research mode)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks, flatten
from quietgrad._gradients.space import Shapes
from quietgrad._representations.base import State
from quietgrad._representations.compose import ComposedCodec
from quietgrad._representations.masks.coordinates import is_kept
from quietgrad._representations.masks.mask import MaskCodec
from quietgrad.methods.gip.selection import Grouping


class CosineSimilarity(qg.Observer):
    """cos(update, Σ_i g_i) of every step with a batch: how far the released gradient still points the true way."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self._true: Tensor | None = None

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        part = flatten(grads.weighted_sum(torch.ones(grads.samples))).double()
        self._true = part if self._true is None else self._true + part

    def step(self, step: int, released: list[qg.Released], update: Blocks) -> None:
        if self._true is not None:
            self.values.append(cosine(self._true, flatten(update).double()))
        self._true = None


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


class FreezeCounts(qg.Observer):
    """How many times each coordinate was frozen, counted once an epoch."""

    def __init__(self) -> None:
        self.counts: Int[Tensor, " p"] | None = None
        self._epoch = -1

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if public.epoch == self._epoch:
            return
        self._epoch = public.epoch
        codec = mask_of(public.codec(mechanism.releases[0].representation))
        frozen = ~is_kept(codec.kept, codec.source)
        self.counts = frozen.long() if self.counts is None else self.counts + frozen

    def histogram(self) -> list[int]:
        """At j the number of coordinates that were frozen j times."""
        assert self.counts is not None, "no batch was seen"
        counted: list[int] = torch.bincount(self.counts).tolist()
        return counted


class EncodedNorms(qg.Observer):
    """‖encode(g_i)‖ of every sample that the first release's clip sees.

    Args:
        every: look at one step in so many.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self.norms: dict[int, Float64[Tensor, " n"]] = {}

    def micro_batch(self, grads: qg.PerSampleGrads, public: qg.Public, mechanism: qg.Mechanism) -> None:
        if public.step % self.every:
            return
        encoded = public.codec(mechanism.releases[0].representation).encode(grads)
        seen = self.norms.get(public.step, torch.zeros(0, dtype=torch.float64))
        self.norms[public.step] = torch.cat([seen, encoded.squared_norms().sqrt()])


def _everything(space: Shapes) -> dict[str, Tensor]:
    return {name: torch.arange(shape.numel()) for name, shape in space.items()}


def cosine_by_dimension(
    dimensions: Sequence[int], noise_multiplier: float, *, seed: int = 0
) -> dict[int, float]:
    """Cosine of a Gaussian vector clipped to norm 1 with itself plus N(0, σ²) noise: it falls like 1/√d."""
    generator = torch.Generator().manual_seed(seed)
    cosines = {}
    for dimension in dimensions:
        gradient = torch.randn(dimension, generator=generator, dtype=torch.float64)
        gradient /= gradient.norm().clamp_min(1.0)
        noise = noise_multiplier * torch.randn(dimension, generator=generator, dtype=torch.float64)
        cosines[dimension] = cosine(gradient, gradient + noise)
    return cosines


def cosine(a: Float64[Tensor, " p"], b: Float64[Tensor, " p"]) -> float:
    """0 if one of them is zero."""
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else 0.0


def mask_of(codec: qg.Codec) -> MaskCodec:
    """The mask of a codec, alone or composed with another representation."""
    if isinstance(codec, MaskCodec):
        return codec
    if isinstance(codec, ComposedCodec):
        return mask_of(codec.inner if isinstance(codec.inner, MaskCodec) else codec.outer)
    raise ValueError(
        f"Expected a mechanism with a mask, got a {type(codec).__name__}. Watch a freeze or top_groups run."
    )

"""Gradients in units of a clip bound that is learnt from releases, and the count that it is learnt from.

    b_i = ½ if ‖g_i‖ ≤ C, −½ if not,    b̃ = ½ + (Σ_i b_i + noise)/qN,    C ← C·exp(−η·(b̃ − γ))

Formal guarantee: C is a function of past releases. Gradients are divided by it, clipped to 1, and multiplied by it
again after the noise was added, which is post-processing. A record adds at most ½ to each count.
Checked by: tests/laws/test_law2_sensitivity.py, tests/methods/test_adaptive_clip.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from quietgrad._gradients.blocks import Blocks, DenseGrad
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State

CLIPPED = "below_the_clip"
"""The name of the block of counts."""

FARTHEST = 1e6
"""C stays within this factor of where it started: noise alone must not carry it out of what float32 can bound."""


def longest_prefix(name: str, prefixes: Sequence[str]) -> int:
    """Return the number of the group that a parameter belongs to.

    Raises:
        ValueError: it belongs to none.
    """
    matching = [prefix for prefix in prefixes if name.startswith(prefix)]
    if not matching:
        raise ValueError(
            f"No group holds the parameter {name!r}. Add a prefix for it, or '' for all the rest."
        )
    return list(prefixes).index(max(matching, key=len))


class ClipScaleCodec(Codec):
    """Divide each group by its bound, and multiply what was released by it."""

    def __init__(self, space: Space, bounds: Sequence[float], prefixes: Sequence[str]) -> None:
        self.space, self.bounds = space, tuple(bounds)
        self._bound = {name: self.bounds[longest_prefix(name, prefixes)] for name in space}
        self._prefixes = prefixes

    @property
    def remark(self) -> str:
        shown = ", ".join(f"{bound:.3g}" for bound in self.bounds)
        return f"in units of the clip bound, now {shown}"

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        scaled = {}
        for name, block in grads.blocks.items():
            factor = torch.full(
                block.shape[:1] or (1,), 1.0 / self._bound[name], dtype=block.dtype, device=block.device
            )
            scaled[name] = block.scale(left=factor)
        return BlockwiseGrads(scaled, grads.samples, first_inputs=grads.first_inputs)

    def decode(self, released: Released) -> Blocks:
        return {name: self._bound[name] * block for name, block in released.blocks.items()}

    def squared_norms(self, grads: PerSampleGrads) -> Float64[Tensor, "n groups"]:
        """‖(g_i)_b‖² over the square of each group's bound."""
        columns: list[Tensor | float] = [0.0] * len(self.bounds)
        for name, block in grads.blocks.items():
            group = longest_prefix(name, self._prefixes)
            columns[group] = columns[group] + block.squared_norms() / self.bounds[group] ** 2
        nothing = next(block.squared_norms() for block in grads.blocks.values()) * 0.0
        return torch.stack([nothing + column for column in columns], dim=1)


@dataclass(frozen=True, eq=False, kw_only=True)
class ClipScale(Representation):
    """Gradients in units of bounds that follow a quantile of their norms.

    Args:
        start: C before the first count.
        quantile: γ, the part of the records that shall not be clipped.
        learning_rate: η.
        groups: prefixes of parameter names; each group has a bound of its own.
    """

    start: float
    quantile: float
    learning_rate: float
    groups: tuple[str, ...] = ("",)

    def init(self, public: Public) -> State:
        return {"bounds": [float(self.start)] * len(self.groups)}

    def refresh(self, public: Public, state: State) -> tuple[ClipScaleCodec, State]:
        return ClipScaleCodec(public.space, state["bounds"], self.groups), state

    def observe(self, public: Public, state: State, released: Released) -> State:
        if CLIPPED not in released.blocks:
            return state
        below = (0.5 + released.blocks[CLIPPED].double().cpu()).clamp(0.0, 1.0).tolist()
        moved = [
            bound * math.exp(-self.learning_rate * (share - self.quantile))
            for bound, share in zip(state["bounds"], below, strict=True)
        ]
        least, most = self.start / FARTHEST, self.start * FARTHEST
        return {**state, "bounds": [min(max(bound, least), most) for bound in moved]}


class CountCodec(Codec):
    """One row of ±½ for each sample; nothing is decoded."""

    def __init__(self, source: Space, scale: ClipScaleCodec) -> None:
        self._scale = scale
        self.space = Space.of_shapes({CLIPPED: torch.Size((len(scale.bounds),))}, like=source)

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        squared = self._scale.squared_norms(grads)
        rows = torch.where(squared <= 1.0, 0.5, -0.5)
        # A gradient that is not finite is dropped everywhere. One that is exactly zero belongs to no record: a row that
        # fills a batch up must not count.
        counts = squared.isfinite().all(1) & (squared.sum(1) > 0)
        part = self.space.part(CLIPPED)
        rows = (rows * counts[:, None]).to(part.device, part.dtype)
        return BlockwiseGrads({CLIPPED: DenseGrad(rows)}, grads.samples)

    def decode(self, released: Released) -> None:
        return None


@dataclass(frozen=True, eq=False)
class ClippedCount(Representation):
    """Counts the records below each bound, and tells the bounds.

    Args:
        scale: learns from the release.
    """

    scale: ClipScale

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        codec = public.codec(self.scale)
        assert isinstance(codec, ClipScaleCodec)
        return CountCodec(public.space, codec), state

    def observe(self, public: Public, state: State, released: Released) -> State:
        public.observe(self.scale, released)
        return state

"""Masks: only some coordinates of the gradient are kept, released and updated.

Encoded blocks hold the kept coordinates alone, so sums, noise, all-reduce and whatever lives inside a mask
(`gep(…) @ RandomMask(…)`) shrink by the density.

Formal guarantee: a mask is a function of public randomness or past releases, made before the batch is looked at. It
maps each sample on its own, before the clip; the release has the clip's sensitivity in the kept coordinates.
Checked by: tests/laws/test_law2_sensitivity.py, tests/attacks/test_masked_rows.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from quietgrad._gradients.blocks import BlockGrads, Blocks, Positions
from quietgrad._gradients.space import Space, coordinates
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.masks.coordinates import by_block
from quietgrad._representations.masks.restricted import WholeNormGrad
from quietgrad._representations.masks.restriction import Kept, restrict
from quietgrad.schedules import Schedule, check_fits, value_at

Redraw = Literal["epoch", "step"]
MASK_SALT = 0x6D61
"""Masks have a public stream of their own."""


class MaskCodec(Codec):
    """Gathers the kept coordinates of every block; decodes to zeros elsewhere.

    Args:
        source: the blocks that are masked.
        kept: per block, sorted positions in its flattened coordinates.
        clip_first: let the clip see the norm of the whole gradient ("clip, then mask").
        since: the step at which this mask was chosen.
    """

    def __init__(
        self, source: Space, kept: Mapping[str, Positions], *, clip_first: bool = False, since: int = 0
    ) -> None:
        self.source, self.kept, self.clip_first, self.since = source, dict(kept), clip_first, since
        # A block without kept coordinates vanishes, except from a clip that counts whole norms.
        shapes = {name: torch.Size((len(k),)) for name, k in self.kept.items() if len(k) or clip_first}
        self.space = Space.of_shapes(shapes, like=source)
        # Choices are made and remembered on the CPU; each device gets its copy once a step.
        self._on_device = {
            name: Kept.of(self.kept[name], source[name], source.part(name).device) for name in shapes
        }

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        blocks = grads.blocks
        return BlockwiseGrads(
            {name: self._mask_block(name, blocks[name]) for name in self.space}, grads.samples
        )

    def decode(self, released: Released) -> Blocks:
        like = next(iter(released.blocks.values()))
        decoded = {}
        for name, shape in self.source.items():
            whole = like.new_zeros(shape.numel())
            if name in released.blocks:
                whole[self._on_device[name].positions] = released.blocks[name]
            decoded[name] = whole.view(shape)
        return decoded

    def _mask_block(self, name: str, block: BlockGrads) -> BlockGrads:
        kept = self._on_device[name]
        if self.clip_first:
            return WholeNormGrad(block, kept.positions)
        return WholeNormGrad(block, None) if len(kept) == block.shape.numel() else restrict(block, kept)


@dataclass(frozen=True, eq=False)
class RandomMask(Representation):
    """Keeps (1 − r)·p coordinates drawn uniformly; r is the freeze rate.

    Args:
        freeze: r in [0, 1), or a schedule over epochs (`Cooling`).
        redraw: a fresh mask every "epoch" or every "step".
        clip_first: mask after the clip instead of before it.

    Example:
        mask = qg.RandomMask(0.9)  # a tenth of the coordinates
        mechanism = qg.methods.gep(public_losses, rank=4) @ mask
    """

    freeze: float | Schedule
    redraw: Redraw = "epoch"
    clip_first: bool = False

    def __post_init__(self) -> None:
        check_freeze(self.freeze)
        check_redraw(self.redraw)

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        def choose() -> dict[str, Positions]:
            keep = kept_count(self.freeze, public)
            order = torch.randperm(coordinates(public.space), generator=public.generator(MASK_SALT))
            return by_block(order[:keep], public.space)

        return draw_mask(self.redraw, public, state, choose, clip_first=self.clip_first)


def draw_mask(
    redraw: Redraw,
    public: Public,
    state: State,
    choose: Callable[[], dict[str, Positions]],
    *,
    clip_first: bool = False,
) -> tuple[MaskCodec, State]:
    """This period's mask; chosen once and remembered, so that a resumed run goes on with it."""
    period = public.epoch if redraw == "epoch" else public.step
    if state.get("period") != period:
        state = {**state, "kept": choose(), "period": period, "since": public.step}
    return MaskCodec(public.space, state["kept"], clip_first=clip_first, since=state["since"]), state


def kept_count(freeze: float | Schedule, public: Public) -> int:
    """(1 − r)·p, rounded, at least 1."""
    check_fits("freeze", freeze, steps=public.steps, rate=public.rate)
    return max(1, round((1.0 - value_at(freeze, public.epoch)) * coordinates(public.space)))


def check_freeze(freeze: float | Schedule) -> None:
    """Every freeze rate the run can meet lies in [0, 1)."""
    epochs = range(freeze.constant_from + 1) if isinstance(freeze, Schedule) else range(1)
    for epoch in epochs:
        rate = value_at(freeze, epoch)
        if not 0 <= rate < 1:
            raise ValueError(
                f"Expected a freeze rate in [0, 1), got {rate:g} in epoch {epoch}. It is the part of the coordinates "
                "that is not updated (1 − keep)."
            )


def check_redraw(redraw: str) -> None:
    if redraw not in ("epoch", "step"):
        raise ValueError(f"Expected redraw 'epoch' or 'step', got {redraw!r}.")

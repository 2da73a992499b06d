"""A mask that freezes what moved least: ranked by the releases of the last epoch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from quietgrad._gradients.blocks import Positions, flatten
from quietgrad._gradients.space import coordinates
from quietgrad._gradients.stages import Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.masks.coordinates import by_block, is_kept
from quietgrad._representations.masks.mask import MASK_SALT, MaskCodec, check_freeze, draw_mask, kept_count
from quietgrad.schedules import Schedule, value_at


@dataclass(frozen=True, eq=False)
class RankedMask(Representation):
    """Freezes the coordinates whose released gradients of the last epoch have the smallest |mean|.

    Privacy noise is drawn once, on the kept coordinates. The paper ranks frozen coordinates by noise of the same size,
    so that they can come back; here that noise comes from the public generator, and the whole epoch's sum of it is
    drawn at once (a sum of normals is one normal).

    Args:
        freeze: r over epochs, 0 in the first one: there is nothing to rank yet.
    """

    freeze: Schedule

    def __post_init__(self) -> None:
        check_freeze(self.freeze)
        if value_at(self.freeze, 0) > 0:
            raise ValueError(
                f"Expected a freeze schedule that is 0 in the first epoch, got {value_at(self.freeze, 0)}: a ranking "
                "needs a release. Use Cooling(rate, epochs) with epochs >= 2."
            )

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        def choose() -> dict[str, Positions]:
            keep = kept_count(self.freeze, public)
            scores = self._scores(public, state)
            return by_block(scores.topk(keep).indices, public.space)

        codec, chosen = draw_mask("epoch", public, state, choose)
        if chosen is state:
            return codec, state
        # A new epoch is ranked by its own releases.
        return codec, {**chosen, "sums": torch.zeros(coordinates(public.space)), "variance": 0.0}

    def observe(self, public: Public, state: State, released: Released) -> State:
        codec = MaskCodec(public.space, state["kept"])
        sums = state["sums"] + flatten(codec.decode(released)).to(state["sums"])
        return {**state, "sums": sums, "variance": state["variance"] + released.noise_std**2}

    def _scores(self, public: Public, state: State) -> Tensor:
        size = coordinates(public.space)
        if "sums" not in state:
            return torch.zeros(size)
        noise = torch.randn(size, generator=public.generator(MASK_SALT)) * state["variance"] ** 0.5
        scores: Tensor = torch.where(is_kept(state["kept"], public.space), state["sums"], noise).abs()
        return scores

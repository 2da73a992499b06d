"""The norm of each group of a sample's gradient: a release that only tells a mask where the gradient is.

    u_i = (‖(g_i)_b‖)_b,   ‖u_i‖₂ = ‖g_i‖₂ for any disjoint groups

Formal guarantee: clipping u_i to C is taking the group norms of clip_C(g_i), because all of them shrink alike; the sum
has sensitivity C like the gradient's own.
Checked by: tests/laws/test_law2_sensitivity.py, tests/methods/test_top_groups.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from quietgrad._gradients.blocks import DenseGrad
from quietgrad._gradients.space import Space
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads, Released
from quietgrad._representations.base import Codec, Public, Representation, State
from quietgrad._representations.masks.coordinate_groups import (
    GroupBy,
    check_group_by,
    group_coordinates,
    group_size,
)

GROUP_NORMS = "group_norms"
"""The name of the released block."""


class GroupNormsCodec(Codec):
    """Gradients to group norms; nothing is decoded."""

    def __init__(self, source: Space, by: GroupBy) -> None:
        self._sizes = {name: group_size(shape, by) for name, shape in source.items()}
        shapes = {GROUP_NORMS: torch.Size((len(group_coordinates(source, by)),))}
        self.space = Space.of_shapes(shapes, like=source)

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        rows = torch.cat([_norms(block, self._sizes[name]) for name, block in grads.dense().items()], 1)
        return BlockwiseGrads({GROUP_NORMS: DenseGrad(rows)}, grads.samples)

    def decode(self, released: Released) -> None:
        return None


def _norms(block: Float[Tensor, "n *shape"], size: int) -> Float[Tensor, "n g"]:
    """Norms of consecutive runs; zeros that fill up the last one do not change it."""
    flat = block.flatten(1)
    whole = F.pad(flat, (0, -flat.shape[1] % size))
    norms: Tensor = torch.linalg.vector_norm(whole.view(len(flat), -1, size), dim=2)
    return norms


@dataclass(frozen=True, eq=False)
class GroupNorms(Representation):
    """Releases group norms and tells them to another representation.

    Args:
        observer: learns from the release; a mask over the same groups.
        group_by: "channel", or a number of consecutive coordinates.
    """

    observer: Representation
    group_by: GroupBy = "channel"

    def __post_init__(self) -> None:
        check_group_by(self.group_by)

    def refresh(self, public: Public, state: State) -> tuple[Codec, State]:
        return GroupNormsCodec(public.space, self.group_by), state

    def observe(self, public: Public, state: State, released: Released) -> State:
        public.observe(self.observer, released)
        return state

"""The norm of each group of a sample's gradient: a release that only tells a mask where the gradient is.

    u_i = (‖(g_i)_b‖)_b,   ‖u_i‖₂ = ‖g_i‖₂ for any disjoint groups

Formal guarantee: clipping u_i to C is taking the group norms of clip_C(g_i), because all of them shrink alike; the sum
has sensitivity C like the gradient's own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from quietgrad.gradients.dense import DenseGrad
from quietgrad.representations.base import Codec, Representation, State
from quietgrad.representations.coordinate_groups import GroupBy, Groups, check_group_by, group
from quietgrad.stages import BlockwiseGrads, PerSampleGrads, Public, Released

GROUP_NORMS = "group_norms"
"""The name of the released block."""


class GroupNormsCodec(Codec):
    """Gradients to group norms; nothing is decoded."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.space = {GROUP_NORMS: torch.Size((len(groups),))}

    def encode(self, grads: PerSampleGrads) -> PerSampleGrads:
        return BlockwiseGrads({GROUP_NORMS: DenseGrad(self._norms(grads))}, grads.samples)

    def decode(self, released: Released) -> None:
        return None

    def _norms(self, grads: PerSampleGrads) -> Float[Tensor, "n g"]:
        rows = torch.cat([block.flatten(1) for block in grads.dense().values()], 1)
        return self.groups.sum(rows.double().square()).sqrt().to(rows.dtype)


@dataclass(frozen=True, eq=False)
class GroupNorms(Representation):
    """Releases group norms and tells them to another representation.

    Args:
        listener: learns from the release; a mask over the same groups.
        group_by: "channel", or a number of consecutive coordinates.
    """

    listener: Representation
    group_by: GroupBy = "channel"

    def __post_init__(self) -> None:
        check_group_by(self.group_by)

    def refresh(self, public: Public, state: State) -> Codec:
        return GroupNormsCodec(group(public.space, self.group_by))

    def observe(self, public: Public, state: State, released: Released) -> None:
        public.observe(self.listener, released)

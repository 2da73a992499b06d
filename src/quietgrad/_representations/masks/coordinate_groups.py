"""Disjoint groups of coordinates: output channels, or runs of a fixed size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from quietgrad._gradients.space import Shapes

GroupBy = Literal["channel"] | int


@dataclass(frozen=True)
class CoordinateGroups:
    """Which group each coordinate of the concatenated blocks belongs to; groups never cross blocks."""

    of: Int[Tensor, " p"]
    sizes: Int[Tensor, " g"]

    def __len__(self) -> int:
        return len(self.sizes)

    def sum(self, values: Float[Tensor, "*n p"]) -> Float[Tensor, "*n g"]:
        """Σ over each group."""
        total = values.new_zeros(*values.shape[:-1], len(self))
        return total.index_add_(-1, self.of, values)

    def members(self, chosen: Int[Tensor, " m"]) -> Int[Tensor, " kept"]:
        """The coordinates of the chosen groups."""
        mask = torch.zeros(len(self), dtype=torch.bool)
        mask[chosen] = True
        return mask[self.of].nonzero().flatten()


def group_coordinates(space: Shapes, by: GroupBy) -> CoordinateGroups:
    """The groups of a space.

    Args:
        by: "channel" groups each row of a parameter's first dimension (a vector is one group); a number groups that
            many consecutive coordinates of a block, the last group of a block being what is left.
    """
    parts, count = [], 0
    for shape in space.values():
        size = group_size(shape, by)
        parts.append(torch.arange(shape.numel()) // size + count)
        count += math.ceil(shape.numel() / size)
    of = torch.cat(parts)
    return CoordinateGroups(of=of, sizes=torch.bincount(of, minlength=count))


def check_group_by(by: GroupBy) -> None:
    if not (by == "channel" if isinstance(by, str) else by >= 1):
        raise ValueError(f"Expected group_by 'channel' or a number of coordinates >= 1, got {by!r}.")


def group_size(shape: torch.Size, by: GroupBy) -> int:
    """Coordinates of a group in a block of this shape; the last group may be smaller."""
    if by == "channel":
        return max(1, shape.numel() if len(shape) < 2 else shape[1:].numel())
    return by

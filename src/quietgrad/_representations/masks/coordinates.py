"""Positions of coordinates: in the concatenation of all blocks, and in each block."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool
from torch import Tensor

from quietgrad._gradients.blocks import Positions
from quietgrad._gradients.space import Shapes


def by_block(positions: Positions, space: Shapes) -> dict[str, Positions]:
    """Positions in the concatenation of all blocks → sorted positions in each block."""
    ordered = positions.sort().values
    ends = torch.tensor([shape.numel() for shape in space.values()]).cumsum(0)
    cuts = torch.searchsorted(ordered, ends).tolist()
    parts, start = {}, 0
    for (name, shape), end, cut in zip(space.items(), ends.tolist(), cuts, strict=True):
        # A copy: a view would drag the storage of all blocks into every checkpoint.
        parts[name] = ordered[start:cut] - (end - shape.numel())
        start = cut
    return parts


def is_kept(kept: Mapping[str, Positions], space: Shapes) -> Bool[Tensor, " p"]:
    """The mask over the concatenation of all blocks."""
    masks = [torch.zeros(shape.numel(), dtype=torch.bool) for shape in space.values()]
    for mask, name in zip(masks, space, strict=True):
        mask[kept[name]] = True
    return torch.cat(masks)

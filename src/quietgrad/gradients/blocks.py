"""Named blocks of numbers: their names and shapes, and all of them as one vector."""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float
from torch import Tensor

Blocks = dict[str, Tensor]
"""Named tensors: a parameter, a carrier, an embedding each."""

Space = dict[str, torch.Size]
"""The names and shapes of blocks."""


def flatten(blocks: Blocks) -> Float[Tensor, " p"]:
    """All blocks one after the other, at least in float32: ranks' noise is not rounded further before it is added."""
    dtype = functools.reduce(torch.promote_types, (b.dtype for b in blocks.values()), torch.float32)
    return torch.cat([block.detach().flatten().to(dtype) for block in blocks.values()])


def unflatten(flat: Float[Tensor, " p"], like: Blocks) -> Blocks:
    """The blocks of a buffer, in the shapes, dtypes and places of `like`."""
    parts = flat.split([block.numel() for block in like.values()])
    return {
        name: part.view(block.shape).to(block.device, block.dtype)
        for (name, block), part in zip(like.items(), parts, strict=True)
    }

"""Named blocks of numbers: their names and shapes; all of them as one vector or as rows, or a few at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

T = TypeVar("T")

Blocks = dict[str, Tensor]
"""Named tensors: a parameter, a carrier, an embedding each."""

Space = dict[str, torch.Size]
"""The names and shapes of blocks."""

Positions = Int[Tensor, " _"]
"""Sorted positions in a block's flattened coordinates, or in those of all blocks one after the other."""


def at_least_single(values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """In float32 where they had half precision: a sum of a thousand rows would lose whole rows to rounding."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def space_of(blocks: Mapping[str, Tensor]) -> Space:
    """The names and shapes of blocks."""
    return {name: block.shape for name, block in blocks.items()}


def coordinates(space: Space) -> int:
    """p, all blocks together."""
    return sum(shape.numel() for shape in space.values())


def flatten(blocks: Mapping[str, Tensor]) -> Shaped[Tensor, " p"]:
    """All blocks one after the other, in the widest of their dtypes: integers as such, others at least in float32."""
    dtype = functools.reduce(torch.promote_types, (block.dtype for block in blocks.values()))
    dtype = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype
    return torch.cat([block.detach().flatten().to(dtype) for block in blocks.values()])


def unflatten(flat: Shaped[Tensor, " p"], like: Mapping[str, Tensor]) -> Blocks:
    """The blocks of a vector, in the shapes, dtypes and places of `like`."""
    return {name: part.to(like[name]) for name, part in split_blocks(flat, space_of(like)).items()}


def flatten_rows(blocks: Mapping[str, Shaped[Tensor, "n ..."]]) -> Shaped[Tensor, "n p"]:
    """Blocks of n rows each (`[n, *shape]`), side by side."""
    return torch.cat([as_rows(block) for block in blocks.values()], 1)


def as_rows(block: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "n q"]:
    """Each row as a vector; that of a single number has length 1."""
    return block.flatten(1) if block.dim() > 1 else block[:, None]


def split_blocks(flat: Shaped[Tensor, "*n p"], space: Space) -> Blocks:
    """The blocks of a vector, or of each row of a matrix: views, where memory allows them."""
    parts = flat.split([shape.numel() for shape in space.values()], dim=-1)
    shaped = zip(space.items(), parts, strict=True)
    return {name: part.reshape((*flat.shape[:-1], *shape)) for (name, shape), part in shaped}


def packed(things: Iterable[T], size: Callable[[T], int], room: int) -> Iterator[list[T]]:
    """Runs of things whose sizes add up to at most `room`; one that is larger is alone."""
    run: list[T] = []
    filled = 0
    for thing in things:
        if run and filled + size(thing) > room:
            yield run
            run, filled = [], 0
        run.append(thing)
        filled += size(thing)
    if run:
        yield run

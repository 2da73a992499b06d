"""Where the samples of a batch lie in a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import torch
from jaxtyping import Int, Shaped
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Samples lie along `dim`, which is `[outer, n, inner]`: 1, n, 1 unless the batch was merged with others."""

    dim: int
    inner: int = 1

    def fits(self, shape: torch.Size, n: int) -> bool:
        """Whether a tensor of this shape can be laid out so for n samples."""
        return self.dim < len(shape) and shape[self.dim] > 0 and shape[self.dim] % (n * self.inner) == 0

    def samples_first(self, x: Tensor, n: int) -> Shaped[Tensor, "n ..."]:
        """`[n, *shape]` where dimension `dim` of shape became outer·inner: slice i is what belongs to sample i."""
        # For example [3, 2·n·5] merged as (outer 2, n, inner 5): unflatten gives [3, 2, n, 5], the samples move to
        # the front, and [n, 3, 2·5] is left.
        outer = x.shape[self.dim] // (n * self.inner) if self.inner else 1  # a sequence of length 0 has none
        if self.dim == 0 and outer == 1:  # nearly always: one operation instead of three
            return x.unsqueeze(1) if self.inner == 1 else x.unflatten(0, (n, self.inner))
        split = torch.unflatten(x, self.dim, (outer, n, self.inner)).movedim(self.dim + 1, 0)
        return split.flatten(self.dim + 1, self.dim + 2)


@dataclass(frozen=True, eq=False)
class Owners:
    """Positions that belong to samples in no regular order, as after `x[mask]`.

    Args:
        dims: leading dimensions that make up the positions.
        places: the positions of each sample, filled up with −1.
    """

    dims: int
    places: Int[Tensor, "n m"]

    def samples_first(self, x: Tensor, n: int) -> Shaped[Tensor, "n m ..."]:
        """`[n, m, ...]`: what belongs to sample i, filled up with zeros."""
        rows = x.flatten(0, self.dims - 1)
        if len(rows) == 0:
            return x.new_zeros(*self.places.shape, *rows.shape[1:])
        # Where −1 fills up, any valid row is read and then overwritten by zero: a position that does not exist adds
        # nothing to a sum of products.
        taken = rows[self.places.clamp_min(0).flatten()].unflatten(0, self.places.shape)
        missing = (self.places < 0).view(*self.places.shape, *[1] * (rows.dim() - 1))
        filled: Tensor = taken.masked_fill(missing, 0)
        return filled


Placement = Layout | Owners
"""How an output holds the samples."""


def spread_rows(
    rows: Shaped[Tensor, "n ..."], placement: Placement, shape: torch.Size
) -> Shaped[Tensor, "n ..."]:
    """Undo `samples_first` for each sample by itself: `[n, *shape]`, zero where an entry is not the sample's."""
    n = len(rows)
    # Entries are numbered from 1 on: what fills up a sample's row is numbered 0, and lands in a column of its own.
    numbers = torch.arange(1, shape.numel() + 1, device=rows.device).view(shape)
    places = placement.samples_first(numbers, n).reshape(n, -1)
    full = rows.new_zeros(n, shape.numel() + 1).scatter_(1, places, rows.reshape(n, -1))
    return full[:, 1:].reshape(n, *shape)


def whole(shape: torch.Size) -> Layout:
    """All of it belongs to the only sample."""
    return Layout(0, inner=shape[0])


def candidates(shape: torch.Size, n: int, dims: int) -> Iterator[Layout]:
    """Every layout that the first `dims` dimensions allow, plain ones first."""
    if n == 1 and dims > 0:
        yield whole(shape)
        return
    for dim in range(dims):
        if shape[dim] == n:
            yield Layout(dim)
    for dim in range(dims):
        if shape[dim] > n and shape[dim] % n == 0:
            yield Layout(dim, inner=shape[dim] // n)
            yield Layout(dim)


def stride_of(layout: Layout, shape: torch.Size) -> int:
    """How many elements lie between neighbouring samples in row-major order, which no view changes."""
    return layout.inner * shape[layout.dim + 1 :].numel()


def at_stride(stride: int, shape: torch.Size, n: int) -> Layout | None:
    """The layout with that many elements between neighbouring samples, if the samples lie along one dimension."""
    if 0 in shape:  # sequences of length 0: nobody has anything in it, and strides say nothing
        return next((Layout(dim) for dim, size in enumerate(shape) if size == n), None)
    # A dimension holds the samples at this stride if the product of the sizes behind it divides the stride, and n
    # blocks of what remains fill the dimension. The search begins with the last dimension, whose `suffix` is 1.
    suffix = 1
    for dim in range(len(shape) - 1, -1, -1):
        size = shape[dim]
        if stride % suffix == 0 and size > 1:
            inner = stride // suffix
            if inner > 0 and size % (n * inner) == 0:
                return Layout(dim, inner)
        suffix *= size
    return None


class BatchAxis(Enum):
    """Why a gradient has no layout: it has no batch axis, or none that graph analysis knows of."""

    ABSENT = "summed over all samples"
    UNKNOWN = "not known to keep the samples apart"


BatchLayout = Layout | BatchAxis
"""What graph analysis knows about the samples of one gradient."""

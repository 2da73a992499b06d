"""Where the samples lie in a tensor, and how it is said where they lie in the inputs of an operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from torch.autograd.graph import Node


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
        outer = x.shape[self.dim] // (n * self.inner)
        if self.dim == 0 and outer == 1:  # nearly always: one operation instead of three
            return x.unsqueeze(1) if self.inner == 1 else x.unflatten(0, (n, self.inner))
        split = torch.unflatten(x, self.dim, (outer, n, self.inner)).movedim(self.dim + 1, 0)
        return split.flatten(self.dim + 1, self.dim + 2)


@dataclass(frozen=True, eq=False)
class Owners:
    """Positions that belong to samples in no regular way, as after `x[mask]`: found one by one.

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
        taken = rows[self.places.clamp_min(0).flatten()].unflatten(0, self.places.shape)
        missing = (self.places < 0).view(*self.places.shape, *[1] * (rows.dim() - 1))
        filled: Tensor = taken.masked_fill(missing, 0)
        return filled


Placement = Layout | Owners
"""How an output holds the samples."""


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
    suffix = 1
    for dim in range(len(shape) - 1, -1, -1):
        size = shape[dim]
        if stride % suffix == 0 and size > 1:
            inner = stride // suffix
            if inner > 0 and size % (n * inner) == 0:
                return Layout(dim, inner)
        suffix *= size
    return None


# ---- through an operation ------------------------------------------------------------------------------------


class BatchAxis(Enum):
    """Why a gradient has no layout: it has no batch axis, or none that graph analysis knows of."""

    ABSENT = "summed over all samples"
    UNKNOWN = "not known to keep the samples apart"


BatchLayout = Layout | BatchAxis
"""What graph analysis knows about the samples of one gradient."""

Following = tuple[tuple[Node | None, int], ...]
"""Where a node sends its gradients: each of the next nodes, and which of its outputs that is."""


class Shapes(dict[Node, list[torch.Size]]):
    """The shapes of what each node returned in the forward: asked for by it and by all that read it, so kept."""

    def __missing__(self, node: Node) -> list[torch.Size]:
        given = node._input_metadata
        # Most operations return one tensor.
        found = (
            [torch.Size(given[0].shape)] if len(given) == 1 else [torch.Size(meta.shape) for meta in given]
        )
        self[node] = found
        return found


@dataclass(slots=True)
class Visit:
    """One output of one node, and where the samples lie in it."""

    node: Node
    following: Following
    number: int
    layout: Layout
    shape: torch.Size
    n: int
    shapes: Shapes

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def children(self) -> Sequence[torch.Size | None]:
        """The shape of each input that may need a gradient."""
        return [None if child is None else self.shapes[child][place] for child, place in self.following]

    @property
    def first_child(self) -> torch.Size | None:
        """The first of them: most operations need no other."""
        child, place = self.following[0]
        return None if child is None else self.shapes[child][place]

    def saved(self, name: str) -> Any:
        return getattr(self.node, f"_saved_{name}")

    def saved_dim(self, rank: int, name: str = "dim") -> int:
        return wrapped(self.saved(name), rank)

    def saved_dims(self, rank: int, name: str = "dim") -> set[int]:
        """No dimensions at all mean every dimension."""
        dims = self.saved(name)
        return {wrapped(dim, rank) for dim in dims} if dims else set(range(rank))

    def all(self, state: BatchLayout) -> list[BatchLayout]:
        return [state] * len(self.following)

    def moved(self, dim: int) -> Layout:
        layout = self.layout
        return layout if dim == layout.dim else Layout(dim, layout.inner)

    def broadcast(self, shape: torch.Size | None) -> BatchLayout:
        """Where the samples lie in an input of this shape that is broadcast to the output."""
        if shape is None:
            return BatchAxis.UNKNOWN
        dim = self.layout.dim - (len(self.shape) - len(shape))
        return BatchAxis.ABSENT if dim < 0 or shape[dim] == 1 else self.moved(dim)


def wrapped(dim: int, rank: int) -> int:
    """Autograd keeps −1 as 2⁶⁴ − 1."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim % rank if rank else 0

"""What a rule is given: one output of one node of the backward graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import Node

from quietgrad._capture.layout import BatchAxis, BatchLayout, Layout

NextFunctions = tuple[tuple[Node | None, int], ...]
"""Where a node sends its gradients: each of the next nodes, and which of its outputs that is."""


class Shapes(dict[Node, list[torch.Size]]):
    """The shapes of what each node returned in the forward; every node that reads it asks, so they are cached."""

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
    """One output of one node, and where the samples lie in it: what a rule is given."""

    node: Node
    next_functions: NextFunctions
    number: int
    layout: Layout
    shape: torch.Size
    n: int
    shapes: Shapes

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def input_shapes(self) -> Sequence[torch.Size | None]:
        """The shape of each input; None where it needs no gradient."""
        return [None if child is None else self.shapes[child][place] for child, place in self.next_functions]

    @property
    def first_input_shape(self) -> torch.Size | None:
        """The first of them, which is all that most operations have."""
        child, place = self.next_functions[0]
        return None if child is None else self.shapes[child][place]

    def saved(self, name: str) -> Any:
        """Return what autograd saved of the operation's arguments."""
        return getattr(self.node, f"_saved_{name}")

    def saved_dim(self, rank: int, name: str = "dim") -> int:
        return wrap_dim(self.saved(name), rank)

    def saved_dims(self, rank: int, name: str = "dim") -> set[int]:
        """Return the saved dimensions; none at all mean every dimension."""
        dims = self.saved(name)
        return {wrap_dim(dim, rank) for dim in dims} if dims else set(range(rank))

    def all_inputs(self, layout: BatchLayout) -> list[BatchLayout]:
        return [layout] * len(self.next_functions)

    def moved_to(self, dim: int) -> Layout:
        """The same samples along another dimension."""
        layout = self.layout
        return layout if dim == layout.dim else Layout(dim, layout.inner)

    def broadcast(self, shape: torch.Size | None) -> BatchLayout:
        """Find the samples in an input that is broadcast to the output: dimensions agree from the last on."""
        if shape is None:
            return BatchAxis.UNKNOWN
        # A negative number means that the input lacks the dimension of the samples, and size one that it was
        # stretched along it. Either way autograd adds the gradient over the samples.
        dim = self.layout.dim - (len(self.shape) - len(shape))
        return BatchAxis.ABSENT if dim < 0 or shape[dim] == 1 else self.moved_to(dim)


def wrap_dim(dim: int, rank: int) -> int:
    """Count a dimension from the front; autograd saves −1 as 2⁶⁴ − 1."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim % rank if rank else 0


Rule = Callable[[Visit], list[BatchLayout]]
"""From where the samples lie in a node's output to where they lie in each of its inputs."""


def unknown(visit: Visit) -> list[BatchLayout]:
    """Leave all inputs to probing: the rule of every operation that has none."""
    return visit.all_inputs(BatchAxis.UNKNOWN)

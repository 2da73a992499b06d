"""Outputs that all samples share, as position embeddings `[1, t, d]`: where broadcasting gives each sample its own.

The gradient at such an output is already summed over the samples. But the sum that broadcast it (`words + places`) has
an output with one slice for each sample, and the gradient there, sample by sample, is the gradient of the shared one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from quietgrad.capture.coverage import Graph
from quietgrad.capture.layout import Layout

Path = tuple[int, ...]
"""Which consumer to follow at each node, from the shared output on."""

DEEPEST = 6
PASSING = (
    "UnsqueezeBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "CloneBackward0",
)
SPREADING = ("AddBackward0", "ExpandBackward0")


@dataclass(frozen=True)
class Spread:
    """The places that together give a shared output its gradient, each with its layout."""

    places: tuple[tuple[Path, Layout], ...]


class Consumers:
    """Who uses a node's output, in the order of the graph."""

    def __init__(self, graph: Graph) -> None:
        self._parents: dict[Node, list[tuple[Node, int, int]]] = {}
        for node, following in graph.children.items():
            for place, (child, number) in enumerate(following):
                if child is not None:
                    self._parents.setdefault(child, []).append((node, place, number))

    def of(self, edge: GradientEdge) -> list[GradientEdge] | None:
        """Edges behind operations that pass a gradient on unchanged; None if any consumer is another operation."""
        found = []
        for node, place, number in self._parents.get(edge.node, []):
            if number != edge.output_nr:
                continue
            name = node.name()
            scaled = name == "AddBackward0" and place == 1 and node._saved_alpha != 1  # type: ignore[attr-defined]
            if name not in PASSING + SPREADING or scaled:
                return None
            found.append(GradientEdge(node, 0))
        return found

    def follow(self, edge: GradientEdge, path: Path) -> GradientEdge | None:
        """The edge at the end of a remembered path."""
        for step in path:
            behind = self.of(edge)
            if behind is None or step >= len(behind):
                return None
            edge = behind[step]
        return edge

    def fronts(self, edge: GradientEdge) -> Iterator[list[tuple[Path, GradientEdge]]]:
        """Ever later sets of edges through which all of the output's gradient flows."""
        front: list[tuple[Path, GradientEdge]] = [((), edge)]
        for _ in range(DEEPEST):
            following: list[tuple[Path, GradientEdge]] = []
            for path, place in front:
                behind = self.of(place)
                if not behind:
                    return
                following += [((*path, step), later) for step, later in enumerate(behind)]
            front = following
            yield front


def reduced(rows: Float[Tensor, "n ..."], shape: torch.Size) -> Float[Tensor, "n ..."]:
    """Each sample's gradient of the shared output: broadcasting undone, or a mere reshape."""
    n, own = len(rows), rows.shape[1:]
    if own.numel() == shape.numel():
        return rows.reshape(n, *shape)
    lead = len(own) - len(shape)
    return rows.sum_to_size(n, *[1] * lead, *shape).reshape(n, *shape)

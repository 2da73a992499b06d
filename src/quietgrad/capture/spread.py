"""Outputs that all samples share, as position embeddings `[1, t, d]`: where broadcasting gives each sample its own.

The gradient at such an output is already summed over the samples. But the sum that broadcast it (`words + places`) has
an output with one slice for each sample, and the gradient there, sample by sample, is the gradient of the shared one.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from quietgrad.capture.graph import Flow, Graph
from quietgrad.capture.layout import Layout

DEEPEST = 6
"""Operations between a shared output and its broadcast: an unsqueeze, a view and a few sums of tables."""
PASSING = (
    "UnsqueezeBackward0",
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "CloneBackward0",
)
SPREADING = ("AddBackward0", "ExpandBackward0")


Ends = list[tuple[GradientEdge, Layout]]
"""The places that together give a shared output its gradient, each with its layout."""


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

    def ends(self, edge: GradientEdge, flow: Flow) -> Ends | None:
        """The first edges, through which all of the output's gradient flows, that have the samples apart."""
        front = [edge]
        for _ in range(DEEPEST):
            following: list[GradientEdge] = []
            for place in front:
                behind = [place] if isinstance(flow.at(place), Layout) else self.of(place)
                if not behind:
                    return None
                following += behind
            front = following
            found = [(place, state) for place in front if isinstance(state := flow.at(place), Layout)]
            if len(found) == len(front):
                return found
        return None


def together(
    gradients: list[Tensor | None], layouts: list[Layout], shape: torch.Size, n: int
) -> Float[Tensor, "n ..."]:
    """The shared output's gradient, sample by sample: the sum of what arrived at its ends."""
    parts = [
        reduced(layout.samples_first(gradient, n), shape)
        for gradient, layout in zip(gradients, layouts, strict=True)
        if gradient is not None
    ]
    return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]


def reduced(rows: Float[Tensor, "n ..."], shape: torch.Size) -> Float[Tensor, "n ..."]:
    """Each sample's gradient of the shared output: broadcasting undone, or a mere reshape."""
    n, own = len(rows), rows.shape[1:]
    if own.numel() == shape.numel():
        return rows.reshape(n, *shape)
    lead = len(own) - len(shape)
    return rows.sum_to_size(n, *[1] * lead, *shape).reshape(n, *shape)

"""Read off the backward graph where the samples lie in every gradient, for this very batch.

Loss i belongs to sample i, so the gradient at the losses `[n]` has its samples along dimension 0. From there the graph
is walked in the order of the backward. At each node the rule of its operation (`node_rules`) says where the samples
lie in the gradients that it sends on:

    losses [n] ← sum over dim 1 of [n, c]      samples along dimension 0 of [n, c]
               ← transpose of [c, n]           samples along dimension 1 of [c, n]
               ← matrix product W [c, d] · x   no batch axis in the gradient of W; dimension 1 of x [d, n]

A gradient that is reached by two paths which disagree, or through an operation that may mix samples (an index, a mask,
a function of the user's), has an unknown batch axis and is left to probing.

Checked by: tests/capture/test_graph_analysis.py, tests/laws/test_law1_per_sample.py
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.autograd.graph import GradientEdge, Node

from quietgrad._capture.graph import Graph
from quietgrad._capture.layout import BatchAxis, BatchLayout, Layout, at_stride, stride_of
from quietgrad._capture.node_rules.lookup import is_user_function, rule_for
from quietgrad._capture.node_rules.visit import NextFunctions, Shapes, Visit


class GraphAnalysis:
    """The layout of every gradient between the losses and the leaves, for n > 1 samples."""

    def __init__(self, graph: Graph, n: int) -> None:
        self._n, self._shapes = n, Shapes()
        self._layouts: dict[tuple[Node | None, int], BatchLayout] = {
            (graph.root.node, graph.root.output_nr): Layout(0)
        }
        children, names = graph.children, graph.names
        # In the order of a backward every consumer of a node comes before it, so one pass sees all its layouts
        # complete.
        for node in graph.order:
            if next_functions := children[node]:
                self._visit(node, names[node], next_functions)

    def at(self, edge: GradientEdge) -> BatchLayout:
        """Return what is known of the gradient at an edge; one that no gradient reaches has no batch axis."""
        return self._layouts.get((edge.node, edge.output_nr), BatchAxis.ABSENT)

    def outputs_with_gradient(self, node: Node) -> Iterator[tuple[GradientEdge, BatchLayout]]:
        """Find the outputs of a node that get gradients."""
        for number in range(len(self._shapes[node])):
            if (node, number) in self._layouts:
                yield GradientEdge(node, number), self._layouts[node, number]

    def layout_of(self, edge: GradientEdge, shape: torch.Size) -> BatchLayout:
        """Return the same for the gradient reshaped: an edge may be that of a base, and the record its view."""
        layout, own = self.at(edge), self._shapes[edge.node][edge.output_nr]
        if not isinstance(layout, Layout) or own == shape:
            return layout
        # A view keeps the order of the elements in memory, so the stride from sample to sample is the same before and
        # after.
        return at_stride(stride_of(layout, own), shape, self._n) or BatchAxis.UNKNOWN

    def _visit(self, node: Node, name: str, next_functions: NextFunctions) -> None:
        """Send the layouts at a node's outputs on to its inputs."""
        layouts = self._layouts
        # A node may have several outputs (`split`, `max` with indices), each with a layout of its own. All of them
        # send gradients to the same inputs, and the loop over `there` below lets them agree or disagree.
        for number, shape in enumerate(self._shapes[node]):
            layout = layouts.get((node, number))
            if layout is None:
                continue
            if isinstance(layout, Layout):
                visit = Visit(node, next_functions, number, layout, shape, self._n, self._shapes)
                found = rule_for(node, name)(visit)
            else:
                # A user's backward need not be the derivative, so it might even put samples where there were none.
                found = [BatchAxis.UNKNOWN if is_user_function(node) else layout] * len(next_functions)
            for there, new in zip(next_functions, found, strict=True):
                if there[0] is None:
                    continue
                # Autograd adds the gradients of all paths that meet here. The sum has a batch axis only if all of them
                # have the same one; otherwise an entry may belong to two samples, and probing has to say.
                known = layouts.setdefault(there, new)
                if known is not new and known != new:  # two paths disagree
                    layouts[there] = BatchAxis.UNKNOWN

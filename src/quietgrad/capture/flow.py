"""How samples flow back through the graph of the losses, read off its nodes: a proof that holds for this very batch.

Loss i belongs to sample i. Going backwards, a node whose operation keeps the samples apart (a sum over other
dimensions, a product with a weight) tells where the samples lie in its inputs. What is reached in two ways that
disagree, or through an operation that may mix (an index, a mask, a function of the user's), is in doubt and must be
proved by numbers.
"""

from __future__ import annotations

import torch
from torch.autograd.graph import GradientEdge, Node

from quietgrad.capture.coverage import Graph
from quietgrad.capture.layout import Layout, at_stride, stride_of
from quietgrad.capture.node_rules import Fate, State, Visit, rule_for


class Flow:
    """The state of every tensor between the losses and the leaves, for n > 1 samples."""

    def __init__(self, graph: Graph, n: int) -> None:
        self._n = n
        self._states: dict[tuple[Node, int], State] = {(graph.root.node, graph.root.output_nr): Layout(0)}
        for node in graph.order:
            self._visit(node)

    def at(self, edge: GradientEdge) -> State:
        """What is known of the gradient that arrives there; a place that is not reached gets none."""
        return self._states.get((edge.node, edge.output_nr), Fate.SHARED)

    def seen_as(self, edge: GradientEdge, shape: torch.Size) -> State:
        """The same, of a reshaped gradient: an edge may be that of a base, and what is recorded its view."""
        state, own = self.at(edge), torch.Size(edge.node._input_metadata[edge.output_nr].shape)
        if not isinstance(state, Layout) or own == shape:
            return state
        return at_stride(stride_of(state, own), shape, self._n) or Fate.DOUBT

    def _visit(self, node: Node) -> None:
        for number, meta in enumerate(node._input_metadata):
            state = self._states.get((node, number))
            if state is not None and node.next_functions:
                self._pass_on(node, state, number, torch.Size(meta.shape))

    def _pass_on(self, node: Node, state: State, number: int, shape: torch.Size) -> None:
        children = node.next_functions
        if isinstance(state, Layout):
            found = rule_for(node)(Visit(node, number, state, shape, self._n))
        else:
            found = [state] * len(children)
        for (child, place), new in zip(children, found, strict=True):
            if child is not None:
                known = self._states.setdefault((child, place), new)
                if known != new:
                    self._states[child, place] = Fate.DOUBT

"""The backward graph of the losses, and what is read off it for this very batch.

Coverage: every use of a trained parameter lies inside a recorded call. Flow: loss i belongs to sample i, and going
backwards, a node whose operation keeps the samples apart (a sum over other dimensions, a product with a weight) tells
where the samples lie in its inputs. What is reached in two ways that disagree, or through an operation that may mix
(an index, a mask, a function of the user's), is in doubt and must be proved by numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from quietgrad._capture.call import Call
from quietgrad._capture.layout import (
    BatchAxis,
    BatchLayout,
    Following,
    Layout,
    Shapes,
    Visit,
    at_stride,
    stride_of,
)
from quietgrad._capture.node_rules import KNOWN, is_user_function, named, rule_for
from quietgrad._errors import PrivacyError

Use = tuple[Node, str]
"""The operation that reads a parameter, and its name."""


@dataclass(frozen=True)
class Graph:
    """The backward graph of the losses: its nodes, each with the nodes that it sends gradients to."""

    root: GradientEdge
    children: dict[Node, Following]
    order: list[Node]
    """Every node after all that send gradients to it."""
    names: dict[Node, str]
    """What kind of operation each node is."""

    @classmethod
    def of(cls, losses: Tensor) -> Graph:
        """Walk the graph, deep first: a node that is left after all behind it comes before them in the order."""
        root = get_gradient_edge(losses)
        children: dict[Node, Following] = {}
        names: dict[Node, str] = {}
        left: list[Node] = []
        stack: list[Node | None] = [root.node]
        while stack:
            node = stack.pop()
            if node is None:  # all behind the node below it were left
                left.append(cast(Node, stack.pop()))
            elif node not in children:
                following = children[node] = node.next_functions
                names[node] = KNOWN.get(type(node)) or named(node)
                stack += (node, None)
                stack += [child for child, _ in following if child is not None and child not in children]
        return cls(root, children, left[::-1], names)

    def onward(self, nodes: set[Node]) -> set[Node]:
        """Those from which the backward goes on to others of them."""
        leading: set[Node] = set()
        for node in reversed(self.order):
            for child, _ in self.children[node]:
                if child in leading or child in nodes:
                    leading.add(node)
                    break
        return leading & nodes

    @property
    def user_function(self) -> str | None:
        """The name of a function of the user's, if there is any."""
        return next((name for node, name in self.names.items() if is_user_function(node)), None)

    def reaches(self, call: Call) -> bool:
        return any(output.edge.node in self.children for output in call.outputs)

    def inside(self, call: Call) -> set[Node]:
        """The nodes between a call's outputs and its inputs."""
        children, done = self.children, {None, *call.input_nodes}
        found: set[Node] = set()
        stack: list[Node | None] = [output.edge.node for output in call.outputs]
        while stack:
            node = stack.pop()
            if node in done or node not in children:
                continue
            done.add(node)
            found.add(node)
            stack += [child for child, _ in children[node]]
        return found


def uses(graph: Graph, parameters: Mapping[str, nn.Parameter]) -> set[Use]:
    """Where each parameter enters the graph."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    leaves = {
        node: name
        for node, following in graph.children.items()
        if not following and (name := names.get(id(getattr(node, "variable", None)))) is not None
    }
    return {
        (node, leaves[child])
        for node, following in graph.children.items()
        for child, _ in following
        if child in leaves
    }


def uncovered(graph: Graph, calls: Iterable[Call], used: set[Use]) -> set[Use]:
    """Uses outside the calls that account for the parameter."""
    left = set(used)
    for call in calls:
        names = call.unit.names.values()
        left.difference_update([(node, name) for node in graph.inside(call) for name in names])
    return left


def check_coverage(graph: Graph, calls: Iterable[Call], used: set[Use]) -> None:
    """Refuse a parameter that is used outside the calls that account for it."""
    _refuse_hidden_backwards(graph)
    for _, name in uncovered(graph, calls, used):
        raise PrivacyError(
            f"Parameter {name!r} is used outside the forward of every module that holds it, where its per-sample "
            "gradient cannot be seen. Move that use into the forward of such a module, freeze the parameter "
            "(requires_grad_(False)), or call backward directly after the forward that made these losses."
        )


def _refuse_hidden_backwards(graph: Graph) -> None:
    if "CheckpointFunctionBackward" in graph.names.values():
        raise ValueError(
            "Reentrant activation checkpointing hides the layers from the graph. Pass use_reentrant=False to "
            "torch.utils.checkpoint.checkpoint."
        )


class Flow:
    """The state of every tensor between the losses and the leaves, for n > 1 samples."""

    def __init__(self, graph: Graph, n: int) -> None:
        self._n, self._shapes = n, Shapes()
        self._states: dict[tuple[Node | None, int], BatchLayout] = {
            (graph.root.node, graph.root.output_nr): Layout(0)
        }
        children, names = graph.children, graph.names
        for node in graph.order:
            if following := children[node]:
                self._visit(node, names[node], following)

    def at(self, edge: GradientEdge) -> BatchLayout:
        """What is known of the gradient that arrives there; a place that is not reached gets none."""
        return self._states.get((edge.node, edge.output_nr), BatchAxis.ABSENT)

    def reached(self, node: Node) -> Iterator[tuple[GradientEdge, BatchLayout]]:
        """Those outputs of a node that get gradients."""
        for number in range(len(self._shapes[node])):
            if (node, number) in self._states:
                yield GradientEdge(node, number), self._states[node, number]

    def layout_of(self, edge: GradientEdge, shape: torch.Size) -> BatchLayout:
        """The same, of a reshaped gradient: an edge may be that of a base, and what is recorded its view."""
        state, own = self.at(edge), self._shapes[edge.node][edge.output_nr]
        if not isinstance(state, Layout) or own == shape:
            return state
        return at_stride(stride_of(state, own), shape, self._n) or BatchAxis.UNKNOWN

    def _visit(self, node: Node, name: str, following: Following) -> None:
        states = self._states
        for number, shape in enumerate(self._shapes[node]):
            state = states.get((node, number))
            if state is None:
                continue
            if isinstance(state, Layout):
                visit = Visit(node, following, number, state, shape, self._n, self._shapes)
                found = rule_for(node, name)(visit)
            else:
                found = [BatchAxis.UNKNOWN if is_user_function(node) else state] * len(following)
            for there, new in zip(following, found, strict=True):
                # What is reached in two ways that disagree is in doubt.
                if (
                    there[0] is not None
                    and (known := states.setdefault(there, new)) is not new
                    and known != new
                ):
                    states[there] = BatchAxis.UNKNOWN

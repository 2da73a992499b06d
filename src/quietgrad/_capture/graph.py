"""The backward graph of the losses, and the check that every use of a trained parameter lies in a recorded call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from quietgrad._capture.call import Call
from quietgrad._capture.node_rules.node_names import NODE_NAMES, name_of
from quietgrad._capture.node_rules.visit import NextFunctions
from quietgrad._errors import PrivacyError

GraphShape = frozenset[tuple[str, tuple[str, ...]]]
"""Which kinds of operations follow which in a graph."""

Use = tuple[Node, str]
"""The operation that reads a parameter, and its name."""


@dataclass(frozen=True)
class Graph:
    """The backward graph of the losses: its nodes, each with the nodes that it sends gradients to."""

    root: GradientEdge
    children: dict[Node, NextFunctions]
    order: list[Node]
    """Every node after all that send gradients to it."""
    names: dict[Node, str]
    """What kind of operation each node is."""

    @classmethod
    def of(cls, losses: Tensor) -> Graph:
        """Walk the graph depth first; a node is left after all behind it, so the reverse is the backward's order."""
        root = get_gradient_edge(losses)
        children: dict[Node, NextFunctions] = {}
        names: dict[Node, str] = {}
        left: list[Node] = []
        # Without recursion, since a graph of a recurrent model is deeper than Python's stack. None on the stack marks
        # that the node below it is left, after everything behind it was.
        stack: list[Node | None] = [root.node]
        while stack:
            node = stack.pop()
            if node is None:  # everything behind the next node on the stack was left
                left.append(cast(Node, stack.pop()))
            elif node not in children:
                following = children[node] = node.next_functions
                names[node] = NODE_NAMES.get(type(node)) or name_of(node)
                stack += (node, None)
                stack += [child for child, _ in following if child is not None and child not in children]
        return cls(root, children, left[::-1], names)

    @property
    def shape(self) -> GraphShape:
        """Return which kinds of operations follow which: the code that made the losses, seen from behind."""
        names = self.names
        return frozenset(
            [
                (names[node], tuple([names[child] for child, _ in following if child is not None]))
                for node, following in self.children.items()
            ]
        )

    def onward(self, nodes: set[Node]) -> set[Node]:
        """Find those of the nodes from which the backward goes on to others of them."""
        leading: set[Node] = set()
        # From the leaves upwards: a node leads to one of `nodes` if any child is one of them, or leads to one itself.
        for node in reversed(self.order):
            for child, _ in self.children[node]:
                if child in leading or child in nodes:
                    leading.add(node)
                    break
        return leading & nodes

    def reaches(self, call: Call) -> bool:
        """Ask whether the losses depend on an output of the call."""
        return any(output.edge.node in self.children for output in call.outputs)

    def inside(self, call: Call) -> set[Node]:
        """Find the nodes between a call's outputs and its inputs."""
        # The walk stops at the nodes that made the inputs, which lie before the call. What is left between is what
        # the module itself computed.
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
    """Find where each parameter enters the graph."""
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


def find_uncovered(graph: Graph, calls: Iterable[Call], used: set[Use]) -> set[Use]:
    """Find the uses outside the calls that account for the parameter."""
    left = set(used)
    for call in calls:
        names = call.unit.names.values()
        # A use counts as covered only if the call's unit has gradients for that very parameter. A parent module that
        # passes a weight through without accounting for it covers nothing.
        left.difference_update([(node, name) for node in graph.inside(call) for name in names])
    return left


def check_coverage(graph: Graph, calls: Iterable[Call], used: set[Use]) -> None:
    """Refuse a parameter that is used outside the calls that account for it."""
    _refuse_hidden_backwards(graph)
    for _, name in find_uncovered(graph, calls, used):
        if any("BackwardBackward" in node for node in graph.names.values()):
            raise PrivacyError(
                "The losses hold a gradient that was taken with create_graph=True, as the gradient penalty of WGAN-GP "
                f"does. Its backward uses parameter {name!r} a second time, outside of any forward, where its "
                "per-sample gradient cannot be seen. Leave the penalty out, and bound the network by "
                "torch.nn.utils.parametrizations.spectral_norm or by clipping its weights after release()."
            )
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

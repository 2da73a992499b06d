"""The coverage proof: every use of a trained parameter in the graph of the losses lies inside a recorded call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from quietgrad.capture.call import Call

Use = tuple[Node, str]
"""The operation that reads a parameter, and its name."""


@dataclass(frozen=True)
class Graph:
    """The backward graph of the losses: its nodes, each with the nodes that it sends gradients to."""

    root: GradientEdge
    children: dict[Node, tuple[tuple[Node | None, int], ...]]

    @classmethod
    def of(cls, losses: Tensor) -> Graph:
        root = get_gradient_edge(losses)
        children: dict[Node, tuple[tuple[Node | None, int], ...]] = {}
        stack: list[Node | None] = [root.node]
        while stack:
            node = stack.pop()
            if node is None or node in children:
                continue
            following = node.next_functions
            children[node] = following
            stack.extend(child for child, _ in following)
        return cls(root, children)

    @property
    def order(self) -> Iterator[Node]:
        """Every node after all that send gradients to it."""
        waiting = Counter(
            child for following in self.children.values() for child, _ in following if child is not None
        )
        ready = [self.root.node]
        while ready:
            node = ready.pop()
            yield node
            for child, _ in self.children[node]:
                if child is not None:
                    waiting[child] -= 1
                    if waiting[child] == 0:
                        ready.append(child)

    def reaches(self, call: Call) -> bool:
        return any(output.edge.node in self.children for output in call.outputs)

    def inside(self, call: Call) -> set[Node]:
        """The nodes between a call's outputs and its inputs."""
        stop, found = set(call.input_nodes), set()
        stack = [output.edge.node for output in call.outputs]
        while stack:
            node = stack.pop()
            if node in found or node in stop or node not in self.children:
                continue
            found.add(node)
            stack.extend(child for child, _ in self.children[node] if child is not None)
        return found


def uses(graph: Graph, parameters: Mapping[str, nn.Parameter]) -> set[Use]:
    """Where each parameter enters the graph."""
    leaves = {get_gradient_edge(parameter).node: name for name, parameter in parameters.items()}
    return {
        (node, leaves[child])
        for node, following in graph.children.items()
        for child, _ in following
        if child is not None and child in leaves
    }


def uncovered(graph: Graph, calls: Iterable[Call], used: set[Use]) -> set[Use]:
    """Uses outside the calls that account for the parameter."""
    covered: set[Use] = set()
    for call in calls:
        inside = graph.inside(call)
        covered.update((node, name) for node in inside for name in call.unit.names.values())
    return used - covered


def check_coverage(graph: Graph, calls: Iterable[Call], used: set[Use]) -> None:
    """Refuse a parameter that is used outside the calls that account for it."""
    _refuse_hidden_backwards(graph)
    for _, name in uncovered(graph, calls, used):
        raise ValueError(
            f"Parameter {name!r} is used outside the forward of every module that holds it, where its per-sample "
            "gradient cannot be seen. Move that use into the forward of such a module, freeze the parameter "
            "(requires_grad_(False)), or call backward directly after the forward that made these losses."
        )


def _refuse_hidden_backwards(graph: Graph) -> None:
    if any(node.name() == "CheckpointFunctionBackward" for node in graph.children):
        raise ValueError(
            "Reentrant activation checkpointing hides the layers from the graph. Pass use_reentrant=False to "
            "torch.utils.checkpoint.checkpoint."
        )

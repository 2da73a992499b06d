"""The kinds of autograd's nodes."""

from __future__ import annotations

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

NODE_NAMES: dict[type, str] = {}
"""The name of each of autograd's own classes of nodes: a node makes the string anew whenever it is asked."""


def name_of(node: Node) -> str:
    """Return the kind of operation a node is, and cache it if all nodes of its class are of that kind."""
    name = node.name()
    kind: type = type(node)
    if kind.__name__ == name and not issubclass(kind, BackwardCFunction):
        NODE_NAMES[kind] = name
    return name

"""What a rule is told of an operation and what it answers, and which rule goes with which operation."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from quietgrad.capture.layout import Layout


class Fate(Enum):
    """A gradient that has no samples, or may have mixed ones."""

    SHARED = "summed over all samples"
    DOUBT = "not known to keep the samples apart"


State = Layout | Fate


@dataclass(frozen=True)
class Visit:
    """One output of one node, and where the samples lie in it."""

    node: Node
    number: int
    layout: Layout
    shape: torch.Size
    n: int

    @property
    def dim(self) -> int:
        return self.layout.dim

    @property
    def children(self) -> Sequence[torch.Size | None]:
        """The shape of each input that may need a gradient."""
        return [
            None if child is None else torch.Size(child._input_metadata[place].shape)
            for child, place in self.node.next_functions
        ]

    def saved(self, name: str) -> Any:
        return getattr(self.node, f"_saved_{name}")

    def saved_dim(self, rank: int, name: str = "dim") -> int:
        return wrapped(self.saved(name), rank)

    def saved_dims(self, rank: int, name: str = "dim") -> set[int]:
        """No dimensions at all mean every dimension."""
        dims = self.saved(name)
        return {wrapped(dim, rank) for dim in dims} if dims else set(range(rank))

    def all(self, state: State) -> list[State]:
        return [state] * len(self.node.next_functions)

    def moved(self, dim: int) -> Layout:
        return Layout(dim, self.layout.inner)

    def broadcast(self, shape: torch.Size | None) -> State:
        """Where the samples lie in an input of this shape that is broadcast to the output."""
        if shape is None:
            return Fate.DOUBT
        dim = self.dim - (len(self.shape) - len(shape))
        return Fate.SHARED if dim < 0 or shape[dim] == 1 else self.moved(dim)


Rule = Callable[[Visit], list[State]]
RULES: dict[str, Rule] = {}


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


OWN: dict[type[Node], Rule] = {}
"""Rules of functions that are written in Python, by their nodes' class: anybody may call one "Relu"."""


def rule_of(function: type[Function]) -> Callable[[Rule], Rule]:
    def register(apart: Rule) -> Rule:
        OWN[function._backward_cls] = apart
        return apart

    return register


@cache
def _rule_named(name: str) -> Rule:
    kind = re.sub(r"Backward\d*$", "", name)
    return RULES.get(kind, doubtful)


def is_foreign(node: Node) -> bool:
    """Whether it is a function of the user's, whose backward need not be the derivative of what it computes."""
    return issubclass(type(node), BackwardCFunction) and type(node) not in OWN


def rule_for(node: Node) -> Rule:
    """The rule of the node's kind."""
    return (
        OWN[type(node)] if type(node) in OWN else doubtful if is_foreign(node) else _rule_named(node.name())
    )


def wrapped(dim: int, rank: int) -> int:
    """Autograd keeps −1 as 2⁶⁴ − 1."""
    dim = dim - 2**64 if dim >= 2**63 else dim
    return dim % rank if rank else 0


def doubtful(visit: Visit) -> list[State]:
    return visit.all(Fate.DOUBT)

"""Outputs that all samples share, as position embeddings `[1, t, d]`: where broadcasting gives each sample its own.

The gradient at such an output is already summed over the samples. But the sum that broadcast it (`words + places`) has
an output with one slice for each sample, and the gradient there, sample by sample, is the gradient of what was
broadcast. Whatever lies between that and the output (T5 turns its table of distances round) belongs to no sample, and
is gone back through for all samples at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from quietgrad._capture.graph import Flow, Graph
from quietgrad._capture.layout import BatchAxis, Layout

SPREADING = ("AddBackward0", "ExpandBackward0")
"""Operations whose gradient is that of what they broadcast, once broadcasting is undone."""


@dataclass(frozen=True)
class End:
    """A place with the samples apart, and the shared tensor that was broadcast there."""

    edge: GradientEdge
    layout: Layout
    shared: GradientEdge


class Consumers:
    """Who uses a node's output, in the order of the graph."""

    def __init__(self, graph: Graph) -> None:
        self._parents: dict[Node, list[tuple[Node, int, int]]] = {}
        for node, following in graph.children.items():
            for place, (child, number) in enumerate(following):
                if child is not None:
                    self._parents.setdefault(child, []).append((node, place, number))

    def ends(self, edge: GradientEdge, flow: Flow) -> list[End] | None:
        """Where all of a shared output's gradient comes from, samples apart; None where the graph does not tell."""
        found: list[End] = []
        front, seen = [edge], {_place(edge)}
        while front:
            shared = front.pop()
            for node, place, number in self._parents.get(shared.node, []):
                if number != shared.output_nr:
                    continue
                for out, state in flow.reached(node):
                    if isinstance(state, Layout) and _spreads(node, place):
                        found.append(End(out, state, shared))
                    elif state is not BatchAxis.ABSENT:
                        return None
                    elif _place(out) not in seen:
                        seen.add(_place(out))
                        front.append(out)
        return found or None


def _spreads(node: Node, place: int) -> bool:
    scaled = node.name() == "AddBackward0" and place == 1 and node._saved_alpha != 1  # type: ignore[attr-defined]
    return node.name() in SPREADING and not scaled


def _place(edge: GradientEdge) -> tuple[Node, int]:
    return edge.node, edge.output_nr


def together(
    gradients: list[Tensor | None], ends: list[End], edge: GradientEdge, n: int
) -> Float[Tensor, "n ..."] | None:
    """The gradient of a shared output, sample by sample, from what arrived at its ends; None if nothing did."""
    rows: dict[tuple[Node, int], Tensor] = {}
    for gradient, end in zip(gradients, ends, strict=True):
        if gradient is not None:
            part = reduced(end.layout.samples_first(gradient, n), _shape(end.shared))
            before = rows.get(_place(end.shared))
            rows[_place(end.shared)] = part if before is None else before + part
    if not rows or list(rows) == [_place(edge)]:
        return rows.get(_place(edge))
    return _back([GradientEdge(*place) for place in rows], list(rows.values()), edge)


def _back(
    shared: list[GradientEdge], rows: list[Float[Tensor, "n ..."]], edge: GradientEdge
) -> Float[Tensor, "n ..."]:
    """From the shared tensors that were broadcast back to the output that they were made of."""
    arriving = [
        row.to(place.node._input_metadata[place.output_nr].dtype)
        for place, row in zip(shared, rows, strict=True)
    ]
    try:
        return torch.autograd.grad(shared, [edge], arriving, retain_graph=True, is_grads_batched=True)[0]
    except RuntimeError:  # a function of the user's that vmap does not know
        each = [
            torch.autograd.grad(shared, [edge], [row[i] for row in arriving], retain_graph=True)[0]
            for i in range(len(rows[0]))
        ]
        return torch.stack(each)


def _shape(edge: GradientEdge) -> torch.Size:
    return torch.Size(edge.node._input_metadata[edge.output_nr].shape)


def reduced(rows: Float[Tensor, "n ..."], shape: torch.Size) -> Float[Tensor, "n ..."]:
    """Each sample's gradient of a shared tensor: broadcasting undone, or a mere reshape."""
    n, own = len(rows), rows.shape[1:]
    if own.numel() == shape.numel():
        return rows.reshape(n, *shape)
    lead = len(own) - len(shape)
    return rows.sum_to_size(n, *[1] * lead, *shape).reshape(n, *shape)

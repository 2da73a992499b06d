"""Per-sample gradients of outputs that all samples share, as position embeddings `[1, t, d]`: broadcasting undone.

The gradient at such an output is already a sum over the samples, which cannot be taken apart. But the operation that
broadcast it has an output with one slice for each sample:

    words [n, t, d] + positions [1, t, d] → sum [n, t, d]

The gradient at `sum` is that of `positions` before autograd adds over the samples, since d(sum)/d(positions) = 1. So
it is taken there, at the consumer of the broadcast output. Whatever lies between the broadcast and the recorded output
(T5 rearranges its table of distances) belongs to no sample, and is gone back through for all samples at once.

Checked by: tests/laws/test_law1_per_sample.py (positions, distances), tests/capture/test_traps.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from quietgrad._capture.graph import Graph
from quietgrad._capture.graph_analysis import GraphAnalysis
from quietgrad._capture.layout import BatchAxis, Layout

BROADCASTING = ("AddBackward0", "ExpandBackward0")
"""Operations whose gradient is that of what they broadcast, once broadcasting is undone."""


@dataclass(frozen=True)
class BroadcastConsumer:
    """An operation's output with a batch axis, and the tensor without one that was broadcast to it."""

    edge: GradientEdge
    layout: Layout
    source: GradientEdge


class Consumers:
    """Who uses each node's outputs."""

    def __init__(self, graph: Graph) -> None:
        self._users: dict[Node, list[tuple[Node, int, int]]] = {}
        for node, following in graph.children.items():
            for place, (child, number) in enumerate(following):
                if child is not None:
                    self._users.setdefault(child, []).append((node, place, number))

    def of(self, edge: GradientEdge, analysis: GraphAnalysis) -> list[BroadcastConsumer] | None:
        """Find all operations that broadcast what is computed from an output to the samples.

        Returns:
            None where the graph does not tell, or where the output reaches a loss in another way.
        """
        found: list[BroadcastConsumer] = []
        # Follow the output from operation to operation, towards the losses. Each consumer is one of three: it
        # broadcasts to the samples, and the search ends there; it has no batch axis either, and is followed on; or it
        # is anything else, as a product with the samples, where the gradient is not that of the output itself.
        ahead, seen = [edge], {_key(edge)}
        while ahead:
            source = ahead.pop()
            for node, place, number in self._users.get(source.node, []):
                if number != source.output_nr:
                    continue
                for out, layout in analysis.outputs_with_gradient(node):
                    if isinstance(layout, Layout) and _broadcasts(node, place):
                        found.append(BroadcastConsumer(out, layout, source))
                    elif layout is not BatchAxis.ABSENT:
                        return None
                    elif _key(out) not in seen:
                        seen.add(_key(out))
                        ahead.append(out)
        return found or None


def _broadcasts(node: Node, place: int) -> bool:
    """Ask whether an operation adds this input unchanged; `torch.add` may scale its second."""
    scaled = node.name() == "AddBackward0" and place == 1 and node._saved_alpha != 1  # type: ignore[attr-defined]
    return node.name() in BROADCASTING and not scaled


def _key(edge: GradientEdge) -> tuple[Node, int]:
    return edge.node, edge.output_nr


def gradient_before_broadcast(
    gradients: list[Tensor | None], consumers: list[BroadcastConsumer], edge: GradientEdge, n: int
) -> Float[Tensor, "n ..."] | None:
    """Compute the per-sample gradient of an output from those at its consumers; None if none got any."""
    rows: dict[tuple[Node, int], Tensor] = {}
    for gradient, consumer in zip(gradients, consumers, strict=True):
        if gradient is not None:
            part = undo_broadcast(consumer.layout.samples_first(gradient, n), _shape(consumer.source))
            before = rows.get(_key(consumer.source))
            rows[_key(consumer.source)] = part if before is None else before + part
    if not rows or list(rows) == [_key(edge)]:
        return rows.get(_key(edge))
    return _backward_of_all([GradientEdge(*key) for key in rows], list(rows.values()), edge)


def _backward_of_all(
    sources: list[GradientEdge], rows: list[Float[Tensor, "n ..."]], edge: GradientEdge
) -> Float[Tensor, "n ..."]:
    """Go back from the tensors that were broadcast to the output they were computed from, for all samples."""
    arriving = [
        row.to(source.node._input_metadata[source.output_nr].dtype)
        for source, row in zip(sources, rows, strict=True)
    ]
    try:
        # Between the source and the output no sample is involved, so the same piece of graph serves all n rows,
        # batched by vmap.
        return torch.autograd.grad(sources, [edge], arriving, retain_graph=True, is_grads_batched=True)[0]
    except RuntimeError:  # a function of the user's that vmap does not know
        each = [
            torch.autograd.grad(sources, [edge], [row[i] for row in arriving], retain_graph=True)[0]
            for i in range(len(rows[0]))
        ]
        return torch.stack(each)


def _shape(edge: GradientEdge) -> torch.Size:
    return torch.Size(edge.node._input_metadata[edge.output_nr].shape)


def undo_broadcast(rows: Float[Tensor, "n ..."], shape: torch.Size) -> Float[Tensor, "n ..."]:
    """Sum each sample's gradient over the dimensions along which a tensor of this shape was broadcast."""
    n, own = len(rows), rows.shape[1:]
    if own.numel() == shape.numel():
        return rows.reshape(n, *shape)
    lead = len(own) - len(shape)
    return rows.sum_to_size(n, *[1] * lead, *shape).reshape(n, *shape)

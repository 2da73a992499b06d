"""The gradient at one recorded output, and the backward that takes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from quietgrad._capture.call import Call, Output
from quietgrad._capture.layout import Placement
from quietgrad._capture.ragged import rows_of

Key = tuple[int, int]
"""(serial number of the call, position of the output)."""
CallOutput = tuple[Call, Output]


@dataclass(eq=False)
class OutputGradient:
    """The gradient at one output of a call, and where the samples lie in it.

    Args:
        layout: None where no sample is known to own an entry alone.
        is_per_sample: whether dimension 0 already counts the samples, before the output's own dimensions.
    """

    call: Call
    output: Output
    gradient: Tensor
    layout: Placement | None = None
    is_per_sample: bool = False

    @property
    def key(self) -> Key:
        return key_of((self.call, self.output))

    @property
    def sample_dims(self) -> int:
        return sample_dims((self.call, self.output))

    def samples_first(self, n: int) -> Float[Tensor, "n ..."]:
        """Arrange the gradient by its layout."""
        assert self.layout is not None
        return self.layout.samples_first(self.gradient, n)


def key_of(pair: CallOutput) -> Key:
    """Identify an output among all calls."""
    return (pair[0].serial, pair[1].position)


def sample_dims(pair: CallOutput) -> int:
    """Count the leading dimensions of an output that may hold the samples."""
    call, output = pair
    return call.unit.adapter.sample_dims(call.unit.module, output.shape)


def gradients_at(
    losses: Tensor, edges: list[GradientEdge], factors: Tensor, *, keep_graph: bool
) -> list[Tensor | None]:
    """Run one backward of Σ_i factors_i·losses_i to these edges; None where no gradient arrives.

    Gradients are those after hooks that users registered on the outputs, wherever the backward ends.
    """
    if not edges:
        return []
    # Where a backward ends, torch.autograd.grad returns the gradient after the tensor's hooks; where it goes on, the
    # one before them. A node's prehook comes after them and runs exactly where the backward goes on.
    passed: dict[Node, tuple[Tensor | None, ...]] = {}
    nodes = {edge.node for edge in edges}
    handles = [node.register_prehook(partial(passed.__setitem__, node)) for node in nodes]
    try:
        found = torch.autograd.grad(losses, edges, factors, retain_graph=keep_graph, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    arrived = [
        passed[edge.node][edge.output_nr] if edge.node in passed else gradient
        for edge, gradient in zip(edges, found, strict=True)
    ]
    return [None if gradient is None else rows_of(gradient) for gradient in arrived]

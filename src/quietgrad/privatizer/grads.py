"""`p.grad`: where a release is written, and where nothing else may be added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from quietgrad.gradients.blocks import Blocks


def drop_grads(parameters: Mapping[str, nn.Parameter]) -> None:
    """As zero_grad() does: the next release will overwrite them, and the backward needs the memory."""
    for parameter in parameters.values():
        parameter.grad = None


def write_grads(parameters: Mapping[str, nn.Parameter], update: Blocks) -> None:
    """Overwrite every `p.grad` with its block; zero where there is none."""
    for name, parameter in parameters.items():
        block = update.get(name)
        parameter.grad = torch.zeros_like(parameter) if block is None else block.to(parameter.dtype)


class RawBackwardGuard:
    """Refuses gradients that autograd is about to add to `p.grad`, before it does.

    The hooks sit on the nodes of the graph that accumulate: `torch.autograd.grad` and `backward(inputs=…)` for other
    tensors never reach them, and copies of the model do not have them.

    Args:
        parameters: those whose `grad` belongs to the releases.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._watched: dict[str, tuple[Node, RemovableHandle]] = {}

    def attach(self) -> None:
        """Watch every parameter; again after `model.to(…)`, which gives parameters new nodes."""
        for name, parameter in self._parameters.items():
            node = get_gradient_edge(parameter).node
            watched = self._watched.get(name)
            if watched is None or watched[0] is not node:
                # A parameter only holds its node weakly, so that the node has to be kept with the handle.
                self._watched[name] = node, node.register_prehook(_refuse)

    def detach(self) -> None:
        """Leave no hook behind."""
        for _, handle in self._watched.values():
            handle.remove()
        self._watched.clear()


def _refuse(_: Any) -> NoReturn:
    raise ValueError(
        "loss.backward() would add gradients without noise to p.grad, which belongs to private.release(). Pass the "
        'vector of losses (reduction="none", no GradScaler) to private.backward instead. For a loss that reads no '
        "private record (a penalty, a generator's loss), add torch.autograd.grad(loss, parameters) to p.grad after the "
        "release, or call loss.backward(inputs=…) for the other model's parameters; close() ends the guard."
    )

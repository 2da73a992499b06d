"""Gradients consumed during the backward, so that no step holds all of them at once.

`torch.autograd.grad` returns the gradients at all outputs together, at the end. A hook on a node sees its gradient as
soon as it is complete, and whatever the hook does not keep is freed before the backward comes to the next layer. The
peak memory of a step is then that of its largest layer, not of the sum of all layers.

An output is ready for that if graph analysis knows its layout before the backward begins: nothing else needs to be
compared with its gradient later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from torch import Tensor
from torch.autograd.graph import Node

from quietgrad._capture.call import Call, Output
from quietgrad._capture.layout import BatchLayout, Layout, Placement
from quietgrad._capture.output_gradients import CallOutput, Key, key_of, sample_dims

ReadyOutput = tuple[Call, Output, Layout]
"""An output whose gradient can be consumed during the backward."""
Take = Callable[[Call, list[Placement | None], list[Tensor]], None]
"""Takes a call with the layouts and gradients of its outputs."""


def ready_outputs(
    losses: Tensor, passed: set[Node], outputs: list[CallOutput], layouts: dict[Key, BatchLayout]
) -> list[ReadyOutput]:
    """Find the outputs whose gradients can be consumed during the backward.

    Args:
        passed: nodes from which the backward goes on. Where it ends, the engine returns the gradient and runs no hook.
    """
    if losses.device.type != "cpu":
        return []  # hooks of other devices run in threads of their own
    return [
        (call, output, layout)
        for call, output in outputs
        # Calls with several outputs wait until all of their gradients are there. A replay runs a forward, which must
        # not happen inside the engine.
        if isinstance(layout := layouts[key_of((call, output))], Layout)
        and layout.dim < sample_dims((call, output))
        and len(call.outputs) == 1
        and not call.unit.adapter.replays
        and output.edge.node in passed
    ]


@contextlib.contextmanager
def consume_during_backward(ready: list[ReadyOutput], n: int, take: Take) -> Iterator[None]:
    """Hand each ready output's gradient to `take` when the one backward inside this context reaches it."""
    waiting: dict[Node, list[ReadyOutput]] = {}
    # Several calls may end at one node, as where a module returns what another returned. Each takes the gradient.
    for one in ready:
        waiting.setdefault(one[1].edge.node, []).append(one)

    def hook_for(node: Node) -> Callable[[tuple[Tensor | None, ...]], None]:
        def hook(gradients: tuple[Tensor | None, ...]) -> None:
            for call, output, layout in waiting.pop(node):
                gradient = gradients[output.edge.output_nr]
                if gradient is not None:
                    take(call, [layout], [layout.samples_first(gradient.reshape(output.shape), n)])

        return hook

    # A prehook sees the gradient after all paths to the node were added, and before the node's own backward runs.
    handles = [node.register_prehook(hook_for(node)) for node in waiting]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    assert not waiting, "the backward did not reach a node that it was said to pass"

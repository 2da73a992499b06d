"""What careless hands do beside a private step, refused with the remedy: each guard watches one thing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.recorder import Recorder
from quietgrad.privatizer.guards.model_state import ModelStateGuard
from quietgrad.privatizer.guards.private_inputs import PrivateInputs
from quietgrad.sampling.batches import PoissonBatches
from quietgrad.sampling.poisson import PoissonSampler

LEAST_SCALE = 256.0
"""GradScaler's scales are powers of two and begin at 65,536; a weight in a loss is rarely one this large."""


class Guards:
    """All guards of a Privatizer, called where a step goes by.

    Args:
        recorder: knows the model, and whether a public forward is under way.
        batches: the private records, or the sampler that draws them.
    """

    def __init__(self, recorder: Recorder, batches: PoissonBatches | PoissonSampler) -> None:
        model: nn.Module = recorder.model
        parameters: Mapping[str, nn.Parameter] = recorder.parameters
        self._raw_backward = RawBackwardGuard(parameters)
        dataset = batches.dataset if isinstance(batches, PoissonBatches) else None
        self._state = ModelStateGuard(model, lambda: recorder.in_public, lambda: batches.waiting)
        self._inputs = PrivateInputs(model, lambda: recorder.in_public, dataset)
        self._recorder, self._batches = recorder, batches

    def attach(self) -> None:
        """Put all hooks on."""
        self._raw_backward.attach()
        self._state.attach()
        self._inputs.attach()
        if isinstance(self._batches, PoissonBatches):
            self._batches.watch(self._hand_out)

    def _hand_out(self, rows: Any, n: int) -> None:
        self._inputs.hand_out(rows)
        self._recorder.dependence.begin(rows, n)

    def before_backward(self, losses: Tensor) -> None:
        """Before anything is computed from the losses.

        Raises:
            ValueError: they were scaled, their batch is another Privatizer's, or their forward changed the model.
        """
        refuse_scaled(losses)
        self._inputs.consume(losses.numel())
        self._state.check(read_bytes=False)

    def before_release(self) -> None:
        """Before anything is written.

        Raises:
            ValueError: the model changed since the first forward of this step.
        """
        self._state.check(read_bytes=True)

    def released(self) -> None:
        """After a release."""
        self._raw_backward.attach()
        self._state.released()

    def detach(self) -> None:
        """Take all hooks off."""
        self._raw_backward.detach()
        self._state.detach()
        self._inputs.detach()
        if isinstance(self._batches, PoissonBatches):
            self._batches.watch(None)


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


def refuse_scaled(losses: Tensor) -> None:
    """Refuse `scaler.scale(losses)`: the last operation multiplied by a large power of two held in a tensor.

    Such losses would be clipped at the scale's size, and `scaler.step` would shrink the noise.

    Raises:
        ValueError: the losses were scaled. Decided from the scale, never from the losses.
    """
    scale = _last_factor(losses)
    if scale is not None and scale >= LEAST_SCALE and scale.hex().startswith("0x1.0000000000000p"):
        raise ValueError(
            f"The losses were multiplied by {scale:g}, as GradScaler does. Gradients are clipped as they come, so that "
            "a scale only lowers the clip, and scaler.step would divide the release by it. Pass the losses as they "
            "are, and call optimizer.step() without a scaler."
        )


def _last_factor(losses: Tensor) -> float | None:
    node = losses.grad_fn
    if node is None or node.name() != "MulBackward0":
        return None
    factor = node._saved_other  # type: ignore[attr-defined]
    if not isinstance(factor, Tensor) or factor.dim() != 0 or factor.requires_grad:
        return None
    return float(factor)

"""What careless hands do beside a private step, refused with the remedy: each guard watches one thing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from quietgrad._capture.recorder import Recorder
from quietgrad._guards.model_state import ModelStateGuard
from quietgrad._guards.private_inputs import PrivateInputs
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler

LEAST_SCALE = 256.0
"""GradScaler's scales are powers of two and begin at 65,536; a weight in a loss is rarely one this large."""


class Guards:
    """All guards of a Privatizer, called where a step goes by.

    Args:
        recorder: knows the model, and whether a public forward is under way.
        batches: the private records, or the sampler that draws them.
    """

    def __init__(self, recorder: Recorder, batches: PoissonBatches | PoissonSampler) -> None:
        self._recorder, self._batches = recorder, batches
        model: nn.Module = recorder.model
        parameters: Mapping[str, nn.Parameter] = recorder.parameters
        self._raw_backward = RawBackwardGuard(parameters)
        dataset = batches.dataset if isinstance(batches, PoissonBatches) else None
        self._state = ModelStateGuard(
            model, lambda: recorder.in_public, self._batch_waits, self._raw_backward.look_again
        )
        self._inputs = PrivateInputs(model, lambda: recorder.in_public, dataset)

    def attach(self) -> None:
        """Put all hooks on."""
        self._raw_backward.attach()
        self._state.attach()
        self._inputs.attach()
        if isinstance(self._batches, PoissonBatches):
            self._batches.watch(self._hand_out)

    def _batch_waits(self) -> bool:
        """Whether a batch was handed out, or drawn, that is not released yet."""
        batches = self._batches
        return batches.current is not None if isinstance(batches, PoissonBatches) else batches.waiting

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
        # Now for uses of parameters without a forward, and once more at the next one for what changes until then.
        self._raw_backward.attach()
        self._raw_backward.stale = True
        self._state.released()

    def detach(self) -> None:
        """Take all hooks off."""
        self._raw_backward.detach()
        self._state.detach()
        self._inputs.detach()
        if isinstance(self._batches, PoissonBatches):
            self._batches.watch(None)


class RowCount:
    """Compares the rows passed to `backward` with the rows drawn.

    A row passed twice would have twice the sensitivity. With PoissonBatches each micro-batch is followed on its own;
    with a DataLoader the rows of a step are counted.
    """

    def __init__(self, sampler: PoissonSampler, batches: PoissonBatches | None) -> None:
        self._sampler, self._batches = sampler, batches
        self._seen = 0
        sampler.claim(self)
        self._loop = sampler.loops

    def begun_again(self) -> bool:
        """Whether a loop was left within this step, so that its draw is handed out again and counts from the start."""
        again, self._loop = self._seen > 0 and self._loop != self._sampler.loops, self._sampler.loops
        if again:
            self._seen = 0
        return again

    def consume(self, step: int, rows: int) -> int:
        """Account for one micro-batch, before anything is computed from it; the place of its first row in the draw."""
        drawn = self._drawn(step)
        self._consume_micro_batch(rows)
        if self._seen + rows > drawn:
            raise ValueError(
                f"Got {self._seen + rows} rows in this step, but only {drawn} were drawn. Pass each micro-batch to "
                "backward once, one loss per row, and call release() before the next batch."
            )
        self._seen += rows
        return self._seen - rows

    def finish(self, step: int) -> None:
        """Before the release: all drawn rows were seen."""
        drawn = self._drawn(step)
        if self._seen != drawn:
            raise ValueError(
                f"release() after {self._seen} of the {drawn} drawn rows. Pass every micro-batch of the batch through "
                "backward first."
            )

    def next_step(self, step: int) -> None:
        """After the release of a step."""
        self._seen = 0
        self._sampler.released(step)
        if self._batches is not None:
            self._batches.current = None

    def detach(self) -> None:
        """Let another Privatizer have the sampler."""
        self._sampler.let_go(self)

    def _drawn(self, step: int) -> int:
        drawn = self._sampler.rows(step)
        if drawn is None:
            raise ValueError(
                "No batch was drawn for this step. Iterate over the batches given to the Privatizer, and call "
                "release() once per batch."
            )
        return drawn

    def _consume_micro_batch(self, rows: int) -> None:
        batch = self._batches.current if self._batches is not None else None
        if batch is None:
            return
        if rows != batch.outstanding:
            twice = "no micro-batch is waiting: was it passed twice? Several losses of a row: add them row by row first"
            detail = "rows differ" if batch.outstanding else twice
            raise ValueError(
                f"Got {rows} losses where {batch.outstanding} rows of the micro-batch are expected ({detail}). "
                "Take micro-batches from batch.split(size) and pass one loss per row, once."
            )
        batch.outstanding = 0


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
        self.stale = True
        """Whether parameters may have got new nodes since they were looked at."""

    def look_again(self) -> None:
        """Before a forward: once in a step, at the first whose graph a backward could go through."""
        if self.stale and torch.is_grad_enabled():
            self.attach()

    def attach(self) -> None:
        """Watch every parameter; again after `model.to(…)`, which gives parameters new nodes, there and back too."""
        self.stale = False
        trained = [name for name, p in self._parameters.items() if p.requires_grad]
        nodes = accumulating([self._parameters[name] for name in trained])
        for name, node in zip(trained, nodes, strict=True):
            watched = self._watched.get(name)
            if watched is None or watched[0] is not node:
                # A parameter only holds its node weakly, so that the node has to be kept with the handle.
                self._watched[name] = node, node.register_prehook(_refuse)

    def detach(self) -> None:
        """Leave no hook behind."""
        for _, handle in self._watched.values():
            handle.remove()
        self._watched.clear()


def accumulating(parameters: Sequence[nn.Parameter]) -> list[Node]:
    """The nodes that would add to the `grad` of each parameter, told by one operation for all of them.

    The operation copies nothing and is thrown away; what its node holds are the nodes that gradients would go to.
    """
    if not parameters:
        return []
    if not torch.is_grad_enabled():
        with torch.enable_grad():
            return accumulating(parameters)
    read: Any = torch._C._functions.DelayedError("never run", len(parameters))(*parameters)
    node: Any = (read if isinstance(read, Tensor) else read[0]).grad_fn
    return [following for following, _ in node.next_functions]


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

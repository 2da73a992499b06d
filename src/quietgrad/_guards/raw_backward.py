"""`p.grad` belongs to the releases: an ordinary backward is refused before it adds to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch import nn

from quietgrad._capture.hooks import ModelHooks
from quietgrad._errors import PrivacyError


class RawBackwardGuard:
    """Refuse gradients that autograd is about to add to `p.grad`.

    The hooks sit on the nodes of the graph that accumulate. `torch.autograd.grad` and `backward(inputs=…)` for other
    tensors never reach them, and copies of the model do not have them.

    Checked by: tests/attacks/test_raw_backward.py, tests/privatizer/guards/test_raw_backward.py

    Args:
        parameters: returns those whose `grad` belongs to the releases, in every form that a graph may hold.
        hooks: of the model.
    """

    def __init__(self, parameters: Callable[[], Mapping[str, nn.Parameter]], hooks: ModelHooks) -> None:
        self._parameters, self._hooks = parameters, hooks
        self._is_stale = True

    def attach(self) -> None:
        """Watch every parameter, now and once more at the next forward.

        Now, for losses that use parameters without a forward. Again at the forward, since `model.to(…)` gives
        parameters new nodes until then, there and back too.
        """
        self._hook()
        self._is_stale = True

    def before_forward(self) -> None:
        """Look for new nodes, once in a step, at the first forward whose graph a backward could go through."""
        if self._is_stale and torch.is_grad_enabled():
            self._hook()
            self._is_stale = False

    def _hook(self) -> None:
        self._hooks.hook_gradients(self._parameters(), _refuse)


def _refuse(_: Any) -> NoReturn:
    raise PrivacyError(
        "loss.backward() would add gradients without noise to p.grad, which belongs to private.release(). Pass the "
        'vector of losses (reduction="none", no GradScaler) to private.backward instead. For a loss that reads no '
        "private record (a penalty, a generator's loss), add torch.autograd.grad(loss, parameters) to p.grad after the "
        "release, or call loss.backward(inputs=…) for the other model's parameters; close() ends the guard."
    )

"""Refuses, with the remedy, what would let private data past the noise beside a step; each guard watches one thing."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from quietgrad._capture.recorder import Recorder
from quietgrad._collective import Reducer
from quietgrad._guards.anomaly_mode import refuse_stopping_at_nan
from quietgrad._guards.model_state import ModelStateGuard
from quietgrad._guards.private_inputs import PrivateInputs
from quietgrad._guards.raw_backward import RawBackwardGuard
from quietgrad._guards.scaled_losses import refuse_scaled
from quietgrad._sampling.batch import MicroBatchCheck
from quietgrad._sampling.batches import PoissonBatches
from quietgrad._sampling.poisson import PoissonSampler


class Guards:
    """All guards of a Privatizer. `ModelHooks` calls them before forwards, the Privatizer at the ends of a step.

    Args:
        recorder: knows the model, and whether a public forward is under way.
        batches: the private records, or the sampler that draws them.
        begin_step: called before the first private forward of a step.
        check: asks about micro-batches.
        lockstep: the ranks that must be handed equally many micro-batches.
    """

    def __init__(
        self,
        recorder: Recorder,
        batches: PoissonBatches | PoissonSampler,
        begin_step: Callable[[], object],
        check: MicroBatchCheck,
        lockstep: Reducer | None = None,
    ) -> None:
        self._recorder, self._batches, self._check = recorder, batches, check
        self._lockstep = lockstep
        # The model's hooks lead here. They must not keep alive a Privatizer that was thrown away without close().
        self._begin_step = weakref.WeakMethod(begin_step)
        self._has_begun = self._is_paused = False
        self._raw_backward = RawBackwardGuard(recorder.leaf_forms, recorder.hooks)
        self._state = ModelStateGuard(recorder.modules)
        self._inputs = PrivateInputs(batches.dataset if isinstance(batches, PoissonBatches) else None)

    def attach(self) -> None:
        """Put all hooks on the model, those of the recorder too."""
        self._recorder.attach(self)
        self._raw_backward.attach()
        self._inputs.open()
        if isinstance(self._batches, PoissonBatches):
            self._batches.watch(self._hand_out, self._check, self._lockstep)

    def detach(self) -> None:
        """Take all hooks off."""
        self._recorder.detach()
        self._state.forget()
        self._inputs.close()
        if isinstance(self._batches, PoissonBatches):
            self._batches.watch(None)

    # ---- before forwards ------------------------------------------------------------------------------------

    def before_module(self) -> None:
        """Begin a step at its first private forward, then remember the model: from here on only a release changes it.

        Weights are final there. Representations run their public losses before any private forward, so a public
        forward may still change buffers.
        """
        if self._has_begun:
            return
        self._raw_backward.before_forward()
        if self._is_private_forward():
            begin = self._begin_step()
            if begin is not None:
                # Public losses need gradients, also where this forward takes none.
                with torch.inference_mode(False), torch.enable_grad():
                    begin()
            self._state.remember()
            self._has_begun = True

    def before_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look at what the model is given."""
        if self._recorder.in_public:
            self._inputs.refuse_private(args, kwargs)
        elif torch.is_grad_enabled():
            self._inputs.await_losses(args, kwargs)

    def _is_private_forward(self) -> bool:
        """Whether a batch is not released yet, and this forward may keep something of it.

        One without gradients may too: a teacher's, or one that starts layers from data. In evaluation mode it is taken
        for a test, which may run on averaged weights for a moment.
        """
        if self._recorder.in_public or self._is_paused:
            return False
        batches = self._batches
        if torch.is_grad_enabled():
            return batches.current is not None if isinstance(batches, PoissonBatches) else batches.waiting
        if not self._recorder.model.training:
            return False
        return (
            batches.current is not None if isinstance(batches, PoissonBatches) else batches.is_alone_waiting
        )

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Begin no step inside, whose forwards only look at the model."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    # ---- at the ends of a step ------------------------------------------------------------------------------

    def before_backward(self, losses: Tensor) -> None:
        """Check before anything is computed from the losses.

        Raises:
            PrivacyError: anomaly detection is on, they were scaled, their batch is another Privatizer's, or their
                forward changed the model.
        """
        refuse_stopping_at_nan()
        refuse_scaled(losses)
        self._inputs.consume(losses.numel())
        self._state.check(read_bytes=False)

    def before_release(self) -> None:
        """Check before anything is written.

        Raises:
            PrivacyError: the model changed since the first forward of this step.
        """
        self._state.check(read_bytes=True)

    def begin_again(self) -> None:
        """Begin a step at the next private forward. What the model was at the first one stays remembered."""
        self._has_begun = False

    def end_step(self) -> None:
        """Let the model change until the next step, after a release."""
        self._raw_backward.attach()
        self._state.forget()
        self._has_begun = False

    def _hand_out(self, rows: Any) -> None:
        # Public losses run the model. Under `fully_shard` they may not do so inside of a private forward, which would
        # lose the parameters that it has gathered.
        if self._lockstep is not None and (begin := self._begin_step()) is not None:
            begin()
        self._inputs.hand_out(rows)

"""Records the calls that a model makes of its modules, from its hooks."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from quietgrad._capture.adapter import Watch
from quietgrad._capture.call import Call, Unit, record_call, record_tapped_call, separate_outputs
from quietgrad._capture.model_parts import ModelParts
from quietgrad._capture.validation import NORMS, check_norm
from quietgrad._kernels.generators import GeneratorStates

MOST_PENDING = 4096
"""Recorded calls that wait for their losses; older ones are dropped, so that evaluating with grad on leaks nothing."""


class OpenWatches(threading.local):
    """The open watches of each unit in this thread: another thread may run the same model without gradients."""

    def __init__(self) -> None:
        self.of: defaultdict[str, list[Watch | None]] = defaultdict(list)


class CallRecorder:
    """Keep the calls of a model's modules until the losses that they lead to are there.

    Its methods are called by `ModelHooks`.

    Args:
        model: whose calls are recorded.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parts = ModelParts(model)
        self._calls: list[Call] = []
        self._calls_of: dict[str, int] = {}
        self._rng: dict[str, GeneratorStates] = {}
        self._watches = OpenWatches()
        self._serial = self._public_forwards = 0
        self._is_paused = False

    # ---- called by hooks ------------------------------------------------------------------------------------

    def before_model(self) -> None:
        """Refuse norms that were put into training mode."""
        for name, part in self.parts.modules():
            if isinstance(part, NORMS):
                check_norm(part, f"module {name!r}")

    def before_unit(self, unit: Unit, *_: Any) -> None:
        """Keep the state of the generator, since a replay must draw what the call drew; open the unit's watch."""
        if unit.adapter.replays and self.is_active:
            self._rng[unit.name] = GeneratorStates.capture(next(unit.module.parameters()).device)
        if unit.adapter.watches_functions and self.is_active:
            watch = unit.adapter.watch(unit, self._report)
            self._watches.of[unit.name].append(watch)
            if watch is not None:
                watch.__enter__()

    def after_unit(self, unit: Unit, _: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        """Record the call, unless a watch has recorded all that happened inside it."""
        opened = self._watches.of[unit.name]
        watch = opened.pop() if opened else None
        if watch is not None:
            watch.__exit__(None, None, None)
            # The watch has reported each use of a parameter by itself; to record the module as well would count them
            # twice.
            if watch.complete:
                return None
        if result is None or not self.is_active:
            return None
        if unit.adapter.replays:
            result = separate_outputs(result)
        self._record(unit, args, kwargs, result)
        return result

    def _report(self, use: Unit, given: Tensor, result: Tensor) -> None:
        if self.is_active:
            self._record(use, (given,), {}, result)

    def record_tap(self, unit: Unit, given: Tensor, tap: Tensor) -> None:
        """Record the call of a layer in a compiled forward: its input, and the leaf that gets its gradient."""
        index = self._calls_of.get(unit.name, 0)
        self._append(record_tapped_call(unit, index, self._serial, given, tap))

    @property
    def is_active(self) -> bool:
        """Whether forwards are recorded: with gradients on, and not inside `pause`."""
        return torch.is_grad_enabled() and not self._is_paused

    def _record(self, unit: Unit, args: Any, kwargs: Any, result: Any) -> None:
        index = self._calls_of.get(unit.name, 0)
        call = record_call(unit, index, self._serial, args, kwargs, result, self._rng.pop(unit.name, None))
        if call is not None:
            self._append(call)

    def _append(self, call: Call) -> None:
        self._serial += 1
        self._calls_of[call.unit.name] = call.index + 1
        self._calls.append(call)
        del self._calls[:-MOST_PENDING]

    # ---- what was recorded ----------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """Those that wait for their losses."""
        return self._calls

    def forget(self, calls: list[Call]) -> None:
        """Drop the calls that losses used, and everything older; after public losses only what they used."""
        # Calls older than those used belong to forwards that never got a backward (an evaluation with grad on). They
        # would hold their inputs for ever. Public losses come between a private forward and its backward, and drop
        # only their own.
        newest = max((call.serial for call in calls), default=-1)
        done = {id(call) for call in calls}
        self._calls = [
            call for call in self._calls if (id(call) not in done if self.in_public else call.serial > newest)
        ]
        self._calls_of = {}

    def forget_all(self) -> None:
        """Drop every call."""
        self._calls, self._calls_of, self._rng = [], {}, {}

    # ---- what is not private --------------------------------------------------------------------------------

    @property
    def in_public(self) -> bool:
        """Whether a forward of public losses is under way."""
        return self._public_forwards > 0

    @contextlib.contextmanager
    def public_forward(self) -> Iterator[None]:
        """Record a forward of public losses. A step makes them before its private forwards."""
        self._public_forwards += 1
        try:
            yield
        finally:
            self._public_forwards -= 1

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Record nothing while replays and checkpoint recomputations run."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

"""Hears the calls of a model's modules, through forward hooks: what was called since losses were last collected."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.adapters.base import Watch
from quietgrad.capture.call import Call, Hook, Unit, record, set_apart
from quietgrad.capture.dependence import Dependence
from quietgrad.capture.validation import check_norm

MOST_PENDING = 4096
"""Recorded calls that wait for their losses; older ones are given up, so that evaluating with grad on leaks nothing."""


class Pass:
    """The calls recorded since losses were last collected."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}
        self.rng: dict[str, Tensor] = {}


class Watches(threading.local):
    """The watches that are open in this thread: another one may run the same model without gradients."""

    def __init__(self) -> None:
        self.opened: list[Watch | None] = []


class Listener:
    """The calls that a model makes of its modules.

    Args:
        model: any module; hooks are put on by `attach` and taken off by `detach`, nothing else is touched.
        units: the modules that are listened to.
    """

    def __init__(self, model: nn.Module, units: list[Unit]) -> None:
        self.model = model
        self._units = units
        self.dependence = Dependence(self._rehearsal)
        self._pass = Pass()
        self._serial = 0
        self._silent = self._rehearsing = False
        self.in_public = False
        """Whether a forward of public losses is under way."""
        self._handles: list[RemovableHandle] = []

    # ---- hooks ----------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the hooks on."""
        if not self._handles:
            self._hook()

    def _hook(self) -> None:
        self._handles.append(self.model.register_forward_pre_hook(Hook(self._before_model), with_kwargs=True))
        self._handles.append(
            self.model.register_forward_hook(Hook(self._after_model), with_kwargs=True, always_call=True)
        )
        for unit in self._units:
            self._handles.extend(
                self._watch_functions(unit) if unit.adapter.watches_functions else self._watch(unit)
            )

    def listen_to(self, units: list[Unit]) -> None:
        """From now on to these."""
        self._unhook()
        self._units = units
        self._hook()

    def detach(self) -> None:
        """Take the hooks off and forget what was recorded."""
        self._unhook()
        self.forget_all()
        self.dependence.end()

    @property
    def attached(self) -> bool:
        return bool(self._handles)

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _watch(self, unit: Unit) -> Iterator[RemovableHandle]:
        if unit.adapter.replays:
            yield unit.module.register_forward_pre_hook(Hook(self._remembering_rng(unit)))
        yield unit.module.register_forward_hook(Hook(self._recording(unit)), with_kwargs=True, prepend=True)

    def _watch_functions(self, unit: Unit) -> Iterator[RemovableHandle]:
        """A watch around the module's forward; taken off even if the forward fails."""
        watches, recording = Watches(), self._recording(unit)

        def report(use: Unit, given: Tensor, result: Tensor) -> None:
            if self._active():
                self._record(use, (given,), {}, result)

        def enter(_: nn.Module, __: Any) -> None:
            if self._active() or self._rehearsing:
                watches.opened.append(unit.adapter.watch(unit, report))
                if watches.opened[-1] is not None:
                    watches.opened[-1].__enter__()

        def leave(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            watch = watches.opened.pop() if watches.opened else None
            if watch is not None:
                watch.__exit__(None, None, None)
            seen = watch is not None and watch.complete
            return None if seen or result is None else recording(module, args, kwargs, result)

        if unit.adapter.replays:
            yield unit.module.register_forward_pre_hook(Hook(self._remembering_rng(unit)))
        yield unit.module.register_forward_pre_hook(Hook(enter))
        yield unit.module.register_forward_hook(Hook(leave), prepend=True, with_kwargs=True, always_call=True)

    def _before_model(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for name, part in self.model.named_modules():
            check_norm(part, f"module {name!r}")
        if not self._silent and not self.in_public:
            self.dependence.enter_model(args, kwargs)

    def _after_model(self, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if not self._silent and not self.in_public:
            self.dependence.leave_model(module, args, kwargs, result)

    def _remembering_rng(self, unit: Unit) -> Any:
        """A replay must draw what the call drew."""

        def hook(_: nn.Module, __: Any) -> None:
            if self._active():
                self._pass.rng[unit.name] = torch.get_rng_state()

        return hook

    def _recording(self, unit: Unit) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
            if not self._active():
                return None
            if unit.adapter.replays:
                result = set_apart(result)
            self._record(unit, args, kwargs, result)
            return result

        return hook

    def _active(self) -> bool:
        return torch.is_grad_enabled() and not self._silent

    def _record(self, unit: Unit, args: Any, kwargs: Any, result: Any) -> None:
        index = self._pass.counts.get(unit.name, 0)
        call = record(unit, index, self._serial, args, kwargs, result, self._pass.rng.pop(unit.name, None))
        if call is None:
            return
        self._serial += 1
        self._pass.counts[unit.name] = index + 1
        self._pass.calls.append(call)
        del self._pass.calls[:-MOST_PENDING]

    # ---- what was heard -------------------------------------------------------------------------------------

    @property
    def calls(self) -> list[Call]:
        """Those that wait for their losses."""
        return self._pass.calls

    def forget(self, calls: list[Call]) -> None:
        """What the losses used is done with, and so is everything older than it."""
        newest = max((call.serial for call in calls), default=-1)
        self._pass.calls = [call for call in self._pass.calls if call.serial > newest]
        self._pass.counts = {}

    def forget_all(self) -> None:
        self._pass = Pass()

    # ---- what is not to be heard ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Record a public forward apart from the private one around it."""
        outer, was_public = self._pass, self.in_public
        self._pass, self.in_public = Pass(), True
        try:
            with self.dependence.aside():
                yield
        finally:
            self._pass, self.in_public = outer, was_public

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """No recording while replays and checkpoint recomputations run."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    @contextlib.contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """The model is run again for a test, and its buffers are what they were afterwards."""
        kept = [(buffer, buffer.clone(), buffer._version) for buffer in self.model.buffers()]
        with self.quiet():
            self._rehearsing = True
            try:
                yield
            finally:
                self._rehearsing = False
                for buffer, value, version in kept:
                    if buffer._version != version:
                        buffer.copy_(value)

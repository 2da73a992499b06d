"""A model may change by releases only: what a forward writes into it is private data without noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.call import Hook
from quietgrad.privatizer.guards.fingerprint import Kept, Mark, mark
from quietgrad.privatizer.guards.holdings import Holdings

READ_ALWAYS = 2**28
"""Bytes of a model that are read at every step; of a larger one a random part of about this size; all at the first."""

_anyone = random.SystemRandom()


class ModelStateGuard:
    """Remembers the model at the first forward of a step and refuses a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. A public forward may change buffers and attributes.

    Args:
        model: all of its parameters, buffers and attributes that hold tensors.
        in_public: whether the forward under way is one of public losses.
        batch_waits: whether a batch is under way; forwards before it see no private record.
    """

    def __init__(
        self, model: nn.Module, in_public: Callable[[], bool], batch_waits: Callable[[], bool]
    ) -> None:
        self._model, self._in_public, self._batch_waits = model, in_public, batch_waits
        self._holdings = Holdings(model)
        self._before: dict[str, Mark] | None = None
        self._last: dict[str, Mark] = {}
        self._kept_so_far: set[str] = set()
        self._first = True
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Watch for the first forward of a step, of the model or of any part of it that has parameters."""
        for module in self._model.modules():
            if module is self._model or module._parameters:
                self._handles.append(module.register_forward_pre_hook(Hook(self._begin)))
        self._handles.append(self._model.register_forward_pre_hook(Hook(self._begin_public)))
        self._handles.append(self._model.register_forward_hook(Hook(self._end_public)))

    def detach(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before, self._last = None, {}

    def check(self, *, read_bytes: bool) -> None:
        """Refuse what was kept since the first forward of this step.

        Args:
            read_bytes: also look for writes that torch does not count.

        Raises:
            ValueError: something changed, or is new.
        """
        if self._before is None:
            return
        for name, thing in self._holdings.now():
            if self._changed(name, thing, read_bytes=read_bytes):
                raise ValueError(_message(name))

    def _changed(self, name: str, thing: Kept, *, read_bytes: bool = True) -> bool:
        before = None if self._before is None else self._before.get(name)
        return before is None or not before.same(thing, bytes_too=read_bytes)

    def released(self) -> None:
        """The step is over."""
        self._before = None
        self._first = False

    # ---- the first forward of a step ------------------------------------------------------------------------

    def _begin(self, *_: Any) -> None:
        if self._before is not None or not torch.is_grad_enabled() or self._in_public():
            return
        if self._batch_waits():
            self._before = self._last = self._marks(self._holdings.now())

    def _marks(self, things: list[tuple[str, Kept]]) -> dict[str, Mark]:
        total = sum(thing.nbytes for _, thing in things)
        share = 1.0 if self._first else min(1.0, READ_ALWAYS / max(total, 1))
        return {
            name: mark(thing, read=share == 1.0 or _anyone.random() < share, before=self._last.get(name))
            for name, thing in things
        }

    # ---- public forwards ------------------------------------------------------------------------------------

    def _begin_public(self, *_: Any) -> None:
        if self._before is not None and self._in_public():
            self._kept_so_far = {name for name, thing in self._not_trained() if self._changed(name, thing)}

    def _end_public(self, *_: Any) -> None:
        """Whatever no private forward had changed before it may be what the public one made of it."""
        if self._before is not None and self._in_public():
            for name, thing in self._not_trained():
                if name not in self._kept_so_far:
                    self._before[name] = mark(thing, read=True)

    def _not_trained(self) -> Iterator[tuple[str, Kept]]:
        return ((name, thing) for name, thing in self._holdings.now() if not name.startswith("parameter"))


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )

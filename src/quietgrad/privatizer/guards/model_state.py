"""A model may change by releases only: what a forward writes into it is private data without noise.

Watched is everything it holds that a checkpoint could carry away (`holdings`), by what torch counts and by bytes
(`marks`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from quietgrad.capture.call import Hook
from quietgrad.privatizer.guards.holdings import Holdings, Kept, Things, is_parameter
from quietgrad.privatizer.guards.marks import LOG_ONE_IN, Mark, Shelf, Snapshot

WHOLE_STEPS = 3
"""Steps at the beginning in which every byte is read."""
READ_ALWAYS = 2**28
"""Bytes of a model that are read at every later step; of a larger one a random part of about this size."""

_anyone = random.SystemRandom()


class ModelStateGuard:
    """Remembers the model at the first forward of a step and refuses a step in which it changed.

    Between a release and the next forward the model may change at will: that is the optimizer, a schedule, an average
    of released weights. A public forward may change buffers and attributes.

    Args:
        model: all of its parameters, buffers and attributes that hold tensors.
        in_public: whether the forward under way is one of public losses.
        batch_waits: whether a batch is under way; forwards before it see no private record.
        before_forward: called at every forward, of the model or of any part of it that has parameters, up to the one
            at which the model is remembered.
    """

    def __init__(
        self,
        model: nn.Module,
        in_public: Callable[[], bool],
        batch_waits: Callable[[], bool],
        before_forward: Callable[[], None],
    ) -> None:
        self._model, self._in_public, self._batch_waits = model, in_public, batch_waits
        self._before_forward = before_forward
        self._holdings = Holdings(model)
        self._before: Snapshot | None = None
        self._shelf: Shelf | None = None
        self._kept_so_far: set[str] = set()
        self._steps = 0
        self._handles: list[RemovableHandle] = []

    def attach(self) -> None:
        """Watch for the first forward of a step, of the model or of any part of it that has parameters."""
        for module in self._model.modules():
            if module is self._model or module._parameters:
                self._handles.append(module.register_forward_pre_hook(Hook(self._forward)))
        self._handles.append(self._model.register_forward_pre_hook(Hook(self._begin_public)))
        self._handles.append(self._model.register_forward_hook(Hook(self._end_public)))

    def detach(self) -> None:
        """Leave no hook behind."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before = self._shelf = None

    def check(self, *, read_bytes: bool) -> None:
        """Refuse what was kept since the first forward of this step.

        Args:
            read_bytes: also look for writes that torch does not count.

        Raises:
            ValueError: something changed, or is new.
        """
        if self._before is None:
            return
        things = self._holdings.now()
        if self._before.same(things, bytes_too=read_bytes):
            return
        for name, thing in things:
            if _changed(self._before.marks.get(name), thing, read_bytes=read_bytes):
                raise ValueError(_message(name))

    def released(self) -> None:
        """The step is over."""
        self._before = None
        self._steps += 1

    # ---- the first forward of a step ------------------------------------------------------------------------

    def _forward(self, *_: Any) -> None:
        # Once the model is remembered, `before_forward` was called in a forward with gradients of this very step.
        if self._before is None:
            self._begin()

    def _begin(self) -> None:
        self._before_forward()
        if self._is_private():
            self._before = self._snapshot(self._holdings.now())

    def _is_private(self) -> bool:
        return torch.is_grad_enabled() and not self._in_public() and self._batch_waits()

    def _snapshot(self, things: Things) -> Snapshot:
        shelf = self._shelf
        if shelf is None or shelf.things is not things or not shelf.in_place():
            shelf = self._shelf = Shelf(things)
        if self._steps < WHOLE_STEPS:
            return Snapshot(shelf)
        page, share = _anyone.getrandbits(LOG_ONE_IN), READ_ALWAYS / max(shelf.load, 1)
        chosen = None if share >= 1.0 else {name for name, _ in things if _anyone.random() < share}
        return Snapshot(shelf, page, chosen)

    # ---- public forwards ------------------------------------------------------------------------------------

    def _begin_public(self, *_: Any) -> None:
        if self._before is not None and self._in_public():
            marks = self._before.marks
            changed = {
                n for n, thing in self._not_trained() if _changed(marks.get(n), thing, read_bytes=True)
            }
            self._kept_so_far = changed

    def _end_public(self, *_: Any) -> None:
        """Whatever no private forward had changed before it may be what the public one made of it."""
        if self._before is not None and self._in_public():
            for name, thing in self._not_trained():
                if name not in self._kept_so_far:
                    self._before.replace(name, thing)

    def _not_trained(self) -> Iterator[tuple[str, Kept]]:
        return ((name, thing) for name, thing in self._holdings.now() if not is_parameter(name))


def _changed(before: Mark | None, thing: Kept, *, read_bytes: bool) -> bool:
    return before is None or not before.same(thing, bytes_too=read_bytes)


def _message(name: str) -> str:
    return (
        f"The {name} changed between the forward and the release of this step: it would keep private data outside the "
        "noise. Put that module in eval mode, or replace it (quietgrad.fix swaps BatchNorm); move changes that read no "
        "private record to after release(). A table that follows from lengths alone (rotary or position caches) still "
        "tells the longest record: pad to a fixed length and run the model once on made-up inputs of that length first."
    )

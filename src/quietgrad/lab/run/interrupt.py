"""Ctrl-C between two steps, so that checkpoint and ledger agree and nothing has to be replayed."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A run ended on request, with its checkpoint written; the message says how to go on."""


class StopRequest:
    """Inside the block a first interrupt only sets `asked`; the same one again breaks off at once."""

    def __init__(self) -> None:
        self.asked = False
        self._first: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if number == self._first:
            raise KeyboardInterrupt
        # Ctrl-C reaches a whole process group, and a parent then sends SIGTERM: that is one request, not two.
        self._first = self._first or number
        self.asked = True

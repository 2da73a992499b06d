"""`len(x)` that remembers what it counts.

Python makes a plain number of whatever `__len__` returns, which could then only be known by its value: a constant that
happens to be the size of the batch would be taken for it. So while a micro-batch is followed, `len` itself is another
function, in the thread that follows it.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Sized
from typing import no_type_check

from quietgrad.capture.count import Count

Counter = Callable[[object], Count | None]
"""The number of rows of a thing; None if it is not its business."""

_plain = builtins.len
_watching: list[tuple[int, Counter]] = []
_lock = threading.Lock()
_asked = threading.local()


def watch(counter: Counter) -> None:
    """Ask this counter first, in this thread, until it is forgotten."""
    with _lock:
        _watching.append((threading.get_ident(), counter))
        builtins.len = _counting


def forget(counter: Counter) -> None:
    """Do not ask it any more; the last one leaves everything as it was."""
    with _lock:
        _watching[:] = [(thread, other) for thread, other in _watching if other != counter]
        if not _watching:
            builtins.len = _plain


@no_type_check  # what checks annotations takes lengths itself
def _counting(obj: Sized, /) -> int:
    length = _plain(obj)
    if getattr(_asked, "now", False):  # a length that a counter takes is none of the model's
        return length
    mine = threading.get_ident()
    _asked.now = True
    try:
        counts = [counter(obj) for thread, counter in tuple(_watching) if thread == mine]
    finally:
        _asked.now = False
    return next((count for count in counts if count is not None), length)

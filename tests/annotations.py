"""Signatures are promises: the shapes, dtypes and classes in them are checked at every call that a test makes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype

WANTED = os.environ.get("QUIETGRAD_ANNOTATIONS") == "1"
"""Whether this run executes annotations: it takes about twice the time, so the ordinary run does not."""

NUMBERS: FrozenDict[object, object] = FrozenDict(
    {
        int: int | np.integer,
        float: float | int | np.integer | np.floating,
    }
)
"""As for a static checker an int passes for a float; numpy's numbers pass for Python's."""

checked = beartype(conf=BeartypeConf(hint_overrides=NUMBERS))


@contextmanager
def executed(*, on: bool) -> Iterator[None]:
    """Annotations of the library are executed, or not."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", not on)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)

"""What several releases need of one micro-batch is computed once, and forgotten with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from quietgrad.gradients.stages import PerSampleGrads

T = TypeVar("T")


class Once(Generic[T]):
    """Results of a function of gradients, remembered as long as these live and no other micro-batch is asked for."""

    def __init__(self) -> None:
        self._made: weakref.WeakKeyDictionary[PerSampleGrads, T] = weakref.WeakKeyDictionary()

    def __call__(self, make: Callable[[PerSampleGrads], T], grads: PerSampleGrads) -> T:
        """make(grads), which must not hold `grads` itself, only its blocks: they would keep each other alive."""
        known = self._made.get(grads)
        if known is None:
            self._made.clear()
            known = make(grads)
            if known is not grads:
                self._made[grads] = known
        return known

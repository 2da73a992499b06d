"""Who takes the draws of a sampler: one at a time, since ε counts each draw once."""

from __future__ import annotations

import weakref

from quietgrad._errors import PrivacyError


class Owner:
    """Know who owns a sampler: nobody at first, then one after the other; one that was thrown away is gone too."""

    def __init__(self) -> None:
        self._current: weakref.ref[object] | None = None

    @property
    def current(self) -> object | None:
        return None if self._current is None else self._current()

    def take(self, owner: object) -> bool:
        """Become the owner; return whether there was one before.

        Raises:
            ValueError: there is one now.
        """
        self.refuse_second()
        had_one = self._current is not None
        self._current = weakref.ref(owner)
        return had_one

    def leave(self, owner: object) -> None:
        if self.current is owner:
            self._current = weakref.ref(_Nobody())

    def refuse_second(self) -> None:
        if self.current is not None:
            raise PrivacyError(
                "These batches already belong to a Privatizer. Two models trained on the same draws cost more than "
                "either ε says: make PoissonBatches (or a PoissonSampler) for each, or close() the first Privatizer."
            )


class _Nobody:
    """Die at once: a reference to it says that there was an owner."""

"""How the noisy sums of several processes become one; a single process is the trivial case."""

from __future__ import annotations

from abc import ABC, abstractmethod

from quietgrad.gradients.base import Blocks


class Reducer(ABC):
    """Adds up the noisy encoded sums of all ranks."""

    world: int = 1
    """How many ranks add an equal, independent part of the noise variance."""

    @abstractmethod
    def sum(self, blocks: Blocks) -> Blocks:
        """Σ over ranks, the same on every rank."""


class SingleProcess(Reducer):
    """Nothing to add up."""

    def sum(self, blocks: Blocks) -> Blocks:
        return blocks

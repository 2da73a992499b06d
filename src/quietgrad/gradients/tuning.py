"""Which way each layer takes: measured once per shape under a memory budget, or fixed by rule."""

from __future__ import annotations

import contextlib
import math
import time
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from quietgrad.gradients.base import BlockGrads

DEFAULT_BUDGET = 1 << 30
"""Bytes that formed gradients of one batch may take together if the user sets no budget."""

ROUNDS = 3
HOPELESS = 2.0
"""A way that is this much slower than the best one after a round is not run again."""
PRICE_OF_MEMORY = 1.45
"""A way that keeps gradients must be this much faster than one that does not."""

Self = TypeVar("Self", bound="TunableGrads")


class TunableGrads(BlockGrads):
    """Gradients with several ways to the same norms and sums."""

    @property
    def row_bytes(self) -> float:
        return self.held().get(self.way, 0) / max(1, self.samples)

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the gradients are."""

    @abstractmethod
    def held(self) -> dict[str, int]:
        """Each valid way → bytes that it keeps between norm and sum, beyond the factors."""

    @abstractmethod
    def rule(self) -> str:
        """The way by counting multiplications, used when nothing may be measured; one that holds nothing."""

    @abstractmethod
    def through(self: Self, way: str, chunk: int | None = None) -> Self:
        """The same gradients by another way, nothing computed yet.

        Args:
            chunk: samples that are formed at once where they are not kept.
        """

    @abstractmethod
    def signature(self) -> tuple[Any, ...]:
        """What the fastest way depends on, the number of samples rounded to a power of two."""


@dataclass(frozen=True)
class Choice:
    """A way, and what it took when it was measured (0 if it was chosen by rule)."""

    way: str
    milliseconds: float


class Tuner:
    """Chooses and remembers ways.

    Args:
        memory_budget: bytes for all formed gradients of a batch together.
        deterministic: choose by rule.
    """

    def __init__(self, memory_budget: int | None, deterministic: bool) -> None:
        if memory_budget is not None and memory_budget <= 0:
            raise ValueError(
                f"Expected memory_budget > 0 bytes, got {memory_budget}. Leave it out for 1 GiB."
            )
        self.budget = DEFAULT_BUDGET if memory_budget is None else memory_budget
        self.deterministic = deterministic
        self._choices: dict[tuple[Any, ...], Choice] = {}
        self._left = self.budget

    def begin(self) -> None:
        """A new batch: the whole budget is free again."""
        self._left = self.budget

    def settle(self, block: BlockGrads) -> tuple[BlockGrads, Choice | None]:
        """The block, made to take its best way, with the choice; other kinds of blocks have none."""
        if not isinstance(block, TunableGrads) or block.samples == 0:
            return block, None
        held = {way: bytes_ for way, bytes_ in block.held().items() if bytes_ <= self._left}
        choice = self._choice(block, held)
        self._left -= held.get(choice.way, 0)
        return block.through(choice.way, self._chunk(block)), choice

    def _choice(self, block: TunableGrads, held: dict[str, int]) -> Choice:
        if self.deterministic:
            return Choice(block.rule(), 0.0)
        key = (*block.signature(), *sorted(held))
        if key not in self._choices:
            self._choices[key] = self._fastest(block, held)
        return self._choices[key]

    def _fastest(self, block: TunableGrads, held: dict[str, int]) -> Choice:
        """Ways take turns and the best time of each counts: the processor time of one thread, which other processes
        (and threads that spin while they wait for them) do not disturb."""
        if len(held) == 1:
            return Choice(next(iter(held)), 0.0)
        best = dict.fromkeys(held, math.inf)
        with _one_thread():
            for turn in range(ROUNDS):
                for way in held:
                    if turn == 0 or best[way] < HOPELESS * min(best.values()):
                        best[way] = min(best[way], self._time(block, way))
        way = min(held, key=lambda way: best[way] * (PRICE_OF_MEMORY if held[way] else 1.0))
        return Choice(way, best[way])

    def _time(self, block: TunableGrads, way: str) -> float:
        candidate = block.through(way, self._chunk(block))
        weights = torch.full((block.samples,), 0.5, dtype=torch.float64, device=candidate.device)
        start = time.thread_time()
        candidate.squared_norms()
        candidate.weighted_sum(weights)
        return 1e3 * (time.thread_time() - start)

    def _chunk(self, block: TunableGrads) -> int:
        """Samples formed at once, so that a chunk takes at most 1/16 of the budget and 16 MB."""
        one = max(1, math.prod(block.shape)) * 8
        return max(1, min(self.budget // 16, 1 << 24) // one)


def rounded(samples: int) -> int:
    """The next power of two: batches of nearly the same size share a choice."""
    return 1 << max(0, samples - 1).bit_length()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

"""Select the algorithm of each layer: measured once per shape under a memory budget, or fixed by a rule.

Several algorithms give the same norms and sums of a layer; which is fastest depends on its shape, the processor and the
kernels at hand. So the first batch with a new shape tries those that could win on a few samples, and the choice stays
for that shape. Times are of one thread's processor time, so that other processes do not decide. An algorithm that keeps
formed gradients must be clearly faster than one that does not, and must fit the budget that all layers share.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from quietgrad._gradients.blocks import BlockGrads
from quietgrad._gradients.timings import MeasuredTimes, Times

DEFAULT_BUDGET = 1 << 30
"""Bytes that formed gradients of one batch may take together if the user sets no budget."""

ROUNDS = 3
HOPELESS = 2.0
"""An algorithm that is this much slower than the best one after a round is not run again."""
WORTH_TRYING = 2.5
"""An algorithm with this many times the multiplications of the one with the fewest is not tried."""
TRIAL_BYTES = 1 << 23
"""Formed gradients of a trial."""
PRICE_OF_MEMORY = 1.45
"""An algorithm that keeps gradients must be this much faster than one that does not."""

Self = TypeVar("Self", bound="TunableGrads")


class TunableGrads(BlockGrads):
    """Gradients with several algorithms for the same norms and sums."""

    @property
    def row_bytes(self) -> float:
        return self.memory_cost().get(self.algorithm, 0) / max(1, self.samples)

    @abstractmethod
    def memory_cost(self) -> dict[str, int]:
        """Map each valid algorithm to the bytes that it keeps between norm and sum, beyond the factors."""

    @abstractmethod
    def rule(self) -> str:
        """Choose by counting multiplications, where nothing may be measured; one that keeps nothing."""

    @abstractmethod
    def with_algorithm(self: Self, algorithm: str, chunk: int | None = None) -> Self:
        """Return the same gradients with another algorithm, nothing computed yet.

        Args:
            chunk: samples that are formed at once where they are not kept.
        """

    @abstractmethod
    def work(self) -> dict[str, float]:
        """Count the multiplications of each algorithm, norm and sum together, for one sample."""

    @abstractmethod
    def first(self: Self, count: int) -> Self:
        """Return the gradients of the first samples alone."""

    @abstractmethod
    def signature(self) -> tuple[Any, ...]:
        """Return what the fastest algorithm depends on; first the number of samples, rounded to a power of two."""


@dataclass(frozen=True)
class AlgorithmChoice:
    """An algorithm, and its time for one sample: how many samples were drawn is private. 0 if chosen by rule."""

    algorithm: str
    milliseconds: float


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """Which algorithm one parameter takes, and what it costs.

    Args:
        algorithm: how norms and sums are computed (outer, ghost, pixels, formed, grouped, patches, chunked, or the
            only one there is: indexed, tied, dense, zero).
        milliseconds: norm plus sum of an expected batch, as measured when the algorithm was chosen; 0 where there
            was no choice.
        megabytes: what the gradients of an expected batch hold beyond the factors. Neither is that of a drawn one: how
            many rows were drawn, and how many different tokens they hold, is private.
    """

    layer: str
    algorithm: str
    milliseconds: float
    megabytes: float


def for_rows(reports: Iterable[LayerReport], rows: float) -> tuple[LayerReport, ...]:
    """Turn reports of single rows into those of a batch."""
    return tuple(
        replace(layer, milliseconds=rows * layer.milliseconds, megabytes=rows * layer.megabytes)
        for layer in reports
    )


class Tuner:
    """Selects algorithms, once per shape.

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
        self._choices: dict[tuple[Any, ...], AlgorithmChoice] = {}
        self._measured_times = MeasuredTimes()
        self._left = self.budget

    def begin(self) -> None:
        """Begin a new batch: the whole budget is free again."""
        self._left = self.budget

    def select_algorithm(self, name: str, block: BlockGrads) -> tuple[BlockGrads, LayerReport]:
        """Return the block of a parameter with its best algorithm, and the report of it, of a single row."""
        if not isinstance(block, TunableGrads) or block.samples == 0:
            report = LayerReport(
                layer=name, algorithm=block.algorithm, milliseconds=0.0, megabytes=block.row_bytes / 1e6
            )
            return block, report
        # Blocks come in the order in which the backward reaches them, and the first ones may take most of the budget.
        # An algorithm that keeps nothing is always left, so a small budget makes steps slower and never fails.
        memory_cost = {
            algorithm: bytes_ for algorithm, bytes_ in block.memory_cost().items() if bytes_ <= self._left
        }
        choice = self._choice(block, memory_cost)
        kept = memory_cost.get(choice.algorithm, 0)
        self._left -= kept
        megabytes = kept / block.samples / 1e6
        report = LayerReport(
            layer=name, algorithm=choice.algorithm, milliseconds=choice.milliseconds, megabytes=megabytes
        )
        return block.with_algorithm(choice.algorithm, self._chunk(block)), report

    def _choice(self, block: TunableGrads, memory_cost: dict[str, int]) -> AlgorithmChoice:
        # The time that a processor takes to start a device's kernels says nothing of these.
        if self.deterministic or block.device.type != "cpu":
            return AlgorithmChoice(block.rule(), 0.0)
        # The affordable algorithms are part of the key: with less budget left, the same shape has another best choice.
        key = (*block.signature(), *sorted(memory_cost))
        if key not in self._choices:
            self._choices[key] = self._fastest(block, memory_cost)
        return self._choices[key]

    def _fastest(self, block: TunableGrads, memory_cost: dict[str, int]) -> AlgorithmChoice:
        """Choose the algorithm of the least time, as measured before or now."""
        if len(memory_cost) == 1:
            return AlgorithmChoice(next(iter(memory_cost)), 0.0)
        # Trials cost time too, in the first batch of every new shape. An algorithm with several times the
        # multiplications of another hardly ever wins, so it is not even tried.
        hopeful = self._hopeful(block, memory_cost)
        shape = block.signature()[1:]
        times = self._measured_times.of(shape)
        unknown = [algorithm for algorithm in hopeful if algorithm not in times]
        if unknown:
            times |= self._measure(block, unknown)
            self._measured_times.keep(shape, {algorithm: times[algorithm] for algorithm in unknown})
        algorithm = min(
            hopeful,
            key=lambda algorithm: times[algorithm] * (PRICE_OF_MEMORY if memory_cost[algorithm] else 1.0),
        )
        return AlgorithmChoice(algorithm, times[algorithm])

    def _hopeful(self, block: TunableGrads, memory_cost: dict[str, int]) -> list[str]:
        """List the algorithms whose multiplications do not rule them out."""
        work = block.work()
        least = min(work[algorithm] for algorithm in memory_cost)
        return [algorithm for algorithm in memory_cost if work[algorithm] <= WORTH_TRYING * least]

    def _measure(self, block: TunableGrads, algorithms: list[str]) -> Times:
        """Measure milliseconds a sample: algorithms take turns on a few samples, and the best time of each counts.

        It is the processor time of one thread, which other processes and spinning threads do not disturb.
        """
        # Times depend on shapes and hardly on values, so a few rows of the batch at hand serve as well as made-up ones.
        few = block.first(self._trial_samples(block))
        best = dict.fromkeys(algorithms, math.inf)
        with _one_thread():
            for turn in range(ROUNDS):
                for algorithm in algorithms:
                    # One that lost clearly in the first turn is not tried again; the others take turns, so that a
                    # processor which changes its frequency meanwhile is unfair to none.
                    if turn == 0 or best[algorithm] < HOPELESS * min(best.values()):
                        best[algorithm] = min(best[algorithm], self._time(few, algorithm))
        return {algorithm: time / few.samples for algorithm, time in best.items()}

    def _trial_samples(self, block: TunableGrads) -> int:
        """Choose the samples of a trial: what it forms must not become the step's peak of memory."""
        largest = max(block.memory_cost().values()) / block.samples
        return max(1, min(block.samples, int(TRIAL_BYTES // max(1.0, largest))))

    def _time(self, block: TunableGrads, algorithm: str) -> float:
        candidate = block.with_algorithm(algorithm, self._chunk(block))
        weights = torch.full((block.samples,), 0.5, dtype=torch.float64, device=candidate.device)
        start = time.thread_time()
        # The two operations of every clipped sum. Some algorithms form gradients for the norms and use them again for
        # the sum, so their times cannot be measured apart.
        candidate.squared_norms()
        candidate.weighted_sum(weights)
        return 1e3 * (time.thread_time() - start)

    def _chunk(self, block: TunableGrads) -> int:
        """Choose the samples formed at once: a chunk takes at most 1/16 of the budget and 16 MB."""
        # Eight bytes for each number, as of float64: the chunk is then small enough in either precision.
        one = max(1, math.prod(block.shape)) * 8
        return max(1, min(self.budget // 16, 1 << 24) // one)


def round_to_power_of_two(samples: int) -> int:
    """Round up to a power of two: batches of nearly the same size share a choice."""
    return 1 << max(0, samples - 1).bit_length()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)

"""The collective operations of one release; a single process is the trivial case."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from quietgrad._errors import PrivacyError
from quietgrad._gradients.blocks import Blocks

T = TypeVar("T")


@dataclass(frozen=True)
class Fingerprint:
    """One number that stands for a tensor, and the size of a change that matters."""

    value: float
    scale: float


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What ranks compare before they work together.

    Args:
        equal: JSON-able facts that are the same on every rank.
        close: fingerprints that are the same up to rounding.
    """

    equal: Mapping[str, Any]
    close: Mapping[str, Fingerprint] = field(default_factory=dict)


class Reducer(ABC):
    """Does what a Privatizer has to do together with other ranks.

    Example:
        reducer: qg.distributed.Reducer = qg.distributed.SingleProcess()
        seed = reducer.broadcast(lambda: 7)
    """

    rank: int = 0
    world: int = 1
    """How many ranks add up to one release; rank 0 draws its noise."""

    lockstep: bool = False
    """Whether forwards and backwards wait for those of other ranks, so that all ranks must run equally many."""

    local_records: bool = False
    """Whether each rank holds and draws records of its own, of which the others know nothing but the number."""

    honest: int | None = None
    """How many ranks' shares make the whole noise, where every rank adds one; None where rank 0 adds all of it."""

    @property
    def noise_over_draw(self) -> float:
        """The std that is accounted, of t honest shares, over that of one draw: √t."""
        return math.sqrt(self.honest or 1)

    @property
    def noise_over_accounted(self) -> float:
        """The std of all ranks' shares together, over that which is accounted: √(world/t), or 1."""
        return 1.0 if self.honest is None else math.sqrt(self.world / self.honest)

    @abstractmethod
    def all_reduce(self, blocks: Blocks) -> Blocks:
        """Return Σ over ranks, the same on every rank. The blocks may be overwritten."""

    @abstractmethod
    def reduce_to_rank0(self, blocks: Blocks, release: Callable[[Blocks], Blocks]) -> Blocks:
        """Return `release(Σ over ranks)`, run on rank 0 and broadcast from there.

        For noise that must see the whole sum (a selection).
        """

    @abstractmethod
    def broadcast(self, make: Callable[[], T]) -> T:
        """Return on every rank what `make` returns on rank 0.

        Raises:
            ValueError: `make` failed on rank 0, which raises what `make` did.
        """

    @abstractmethod
    def agree(self, facts: Callable[[], Facts]) -> None:
        """Compare the ranks' facts.

        Raises:
            ValueError: on every rank, if the facts do not fit together.
        """

    def gather(self, mine: T) -> list[T]:
        """Return what each rank passes, in the order of the ranks."""
        return [mine]

    def scatter_sum(self, number: int, block: Tensor) -> Tensor:
        """Return this rank's rows of Σ over ranks of a block; all rows, where sums are not sharded.

        Args:
            number: of the block, the same on all ranks.
        """
        return block

    def make_together(self, make: Callable[[], T | None]) -> tuple[T | None, bool]:
        """Return what `make` returns here, and whether it returned anything on any rank.

        Raises:
            ValueError: `make` failed on some rank, which raises what `make` did.
        """
        made = make()
        return made, made is not None


class SingleProcess(Reducer):
    """The reducer of one process: nothing to add up, nobody to agree with.

    Example:
        reducer = qg.distributed.SingleProcess()
        private = qg.Privatizer(model, mechanism, batches, reducer=reducer)
    """

    def all_reduce(self, blocks: Blocks) -> Blocks:
        return blocks

    def reduce_to_rank0(self, blocks: Blocks, release: Callable[[Blocks], Blocks]) -> Blocks:
        return release(blocks)

    def broadcast(self, make: Callable[[], T]) -> T:
        return make()

    def agree(self, facts: Callable[[], Facts]) -> None:
        """Do nothing: one rank always agrees with itself."""


def default_reducer() -> SingleProcess:
    """Return the reducer of a run that was given none.

    Raises:
        PrivacyError: inside a process group, where every rank would train a model of its own.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise PrivacyError(
            f"torch.distributed runs {dist.get_world_size()} processes, but no reducer was given: each would train a "
            "model of its own, and ε would describe only one of them. Pass reducer=qg.distributed.AllReduce() for one "
            "model, or reducer=qg.distributed.SingleProcess() for independent runs whose ε add up."
        )
    return SingleProcess()

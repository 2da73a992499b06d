"""The reducer of a torch.distributed process group.

    x̃ = γ·(Σ_r round(Σ_{i on rank r} clip(g_i)/γ) + z)/qN       one all-reduce of integers per release

Formal guarantee: the ranks' parts of a draw are disjoint, each is a whole number of steps of the release's grid, and
rank 0 alone adds the noise z to its part. Integers add exactly, so the sum is bit for bit the release that one process
would make of the same parts as micro-batches, whatever the world size; it is refused unless exactly `world` parts went
into it. The processes and the network between them are one trusted party: messages hold sums without noise.

With `records="local"` and `honest=t` ranks need not trust each other (`distributed/noise_shares.py`).
Checked by: tests/distributed/test_equivalence.py, tests/distributed/test_draws.py, tests/attacks/test_other_ranks.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from quietgrad._collective import Facts, Reducer
from quietgrad._gradients.blocks import Blocks, flatten, pack, unflatten
from quietgrad.distributed.agreement import check, row
from quietgrad.distributed.group import first_rank, message_device, patient_group, process_group
from quietgrad.distributed.noise_shares import PairwiseMasks, check_honest

T = TypeVar("T")

AT_ONCE = 1 << 22
"""Numbers of a message."""

FAILED = 2
"""What a rank says that cannot go on."""


class AllReduce(Reducer):
    """All ranks of a process group train one model.

    Args:
        group: a group of gloo or nccl processes; the default group if left out.
        timeout: seconds after which a rank that does not answer ends the others; the group's own if left out.
        records: "shared" if every rank holds all records and takes its part of one draw; "local" if each rank holds
            records that no other rank has, and draws from these. N is then the number of all of them.
        honest: t. Every rank adds a share of the noise, and t shares make the whole: each record is protected from all
            ranks but its own, as long as t ranks add their share and do not reveal it. Rank 0 adds all noise if left
            out. Takes `records="local"`.

    Raises:
        ValueError: there is no process group, or `honest` does not fit the ranks and the records.

    Example:
        reducer = qg.distributed.AllReduce()  # under torchrun, after init_process_group
        private = qg.Privatizer(model, mechanism, batches, reducer=reducer)
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        records: Literal["shared", "local"] = "shared",
        honest: int | None = None,
    ) -> None:
        if records not in ("shared", "local"):
            raise ValueError(f'Expected records "shared" or "local", got {records!r}.')
        self._group = process_group(group) if timeout is None else patient_group(group, timeout)
        self.rank, self.world = dist.get_rank(self._group), dist.get_world_size(self._group)
        self.local_records, self.honest = records == "local", honest
        if honest is not None:
            check_honest(honest, self.world, local_records=self.local_records)
        self._masks: PairwiseMasks | None = None
        self._first = first_rank(self._group)
        self._device = message_device(self._group)
        self.bytes_reduced = 0
        """Bytes of all releases that this rank has put into the group so far."""

    def all_reduce(self, blocks: Blocks) -> Blocks:
        summed = {name: block.contiguous() for name, block in blocks.items()}
        pieces = (piece for block in summed.values() for piece in block.view(-1).split(AT_ONCE))
        # Some blocks at a time: one message with all of them would take as much memory as the sum again.
        for run in pack(pieces, Tensor.numel, AT_ONCE):
            message = self._counted(torch.cat(run))
            # One honest share is the whole noise, so a message with it needs no mask.
            if self.honest is not None and self.honest > 1:
                self._masks = self._masks or PairwiseMasks(self)
                self._masks.add(message)
            with explain_silence():
                dist.all_reduce(message, group=self._group)
            whole = self._all_contributed(message)
            for piece, part in zip(run, whole.split([len(piece) for piece in run]), strict=True):
                piece.copy_(part)
        return summed

    def reduce_to_rank0(self, blocks: Blocks, release: Callable[[Blocks], Blocks]) -> Blocks:
        flat = self._counted(flatten(blocks))
        with explain_silence():
            dist.reduce(flat, self._first, group=self._group)
        if self.rank == 0:
            flat[:-1] = flatten(release(unflatten(self._all_contributed(flat), blocks))).to(flat.device)
        with explain_silence():
            dist.broadcast(flat, self._first, group=self._group)
        self.bytes_reduced += flat.nbytes
        return unflatten(self._all_contributed(flat), blocks)

    def broadcast(self, make: Callable[[], T]) -> T:
        made, error = _attempt(make) if self.rank == 0 else (None, None)
        message: list[Any] = [made, self._describe_error(error)]
        with explain_silence():
            dist.broadcast_object_list(message, self._first, group=self._group)
        if error is not None:
            raise error
        if message[1] is not None:
            raise ValueError(f"Rank 0 cannot go on. {message[1]}")
        # Rank 0 keeps its own object: the copy that the others get may have let go of a file.
        result: Any = made if self.rank == 0 else message[0]
        return cast(T, result)

    def agree(self, facts: Callable[[], Facts]) -> None:
        mine = facts()
        own = row(mine).to(self._device)
        rows = [torch.empty_like(own) for _ in range(self.world)]
        with explain_silence():
            dist.all_gather(rows, own, group=self._group)
        check(torch.stack(rows).cpu(), lambda: self.gather(mine))

    def make_together(self, make: Callable[[], T | None]) -> tuple[T | None, bool]:
        made, error = _attempt(make)
        own = torch.tensor([FAILED if error is not None else int(made is not None)], device=self._device)
        all_ranks = [torch.empty_like(own) for _ in range(self.world)]
        with explain_silence():
            dist.all_gather(all_ranks, own, group=self._group)
        found = [int(one) for one in all_ranks]
        if FAILED in found:
            messages = self.gather(self._describe_error(error))
            if error is not None:
                raise error
            rank, message = next((rank, text) for rank, text in enumerate(messages) if text is not None)
            raise ValueError(f"Rank {rank} cannot go on. {message}")
        return made, any(found)

    def gather(self, mine: T) -> list[T]:
        everybody: list[Any] = [None] * self.world
        with explain_silence():
            dist.all_gather_object(everybody, mine, group=self._group)
        return everybody

    def _describe_error(self, error: Exception | None) -> str | None:
        """Return what other ranks may know of an error: its text can quote a record."""
        if error is None:
            return None
        name = type(error).__name__
        return f"{name}: {error}" if self.honest is None else f"{name}: its own output says more."

    def _counted(self, flat: Tensor) -> Tensor:
        """Append a 1: after the sum it says how many ranks took part."""
        flat = torch.cat([flat, flat.new_ones(1)])
        self.bytes_reduced += flat.nbytes
        return flat.to(self._device) if self._device.type == "cuda" else flat

    def _all_contributed(self, flat: Tensor) -> Tensor:
        if float(flat[-1]) != self.world:
            raise RuntimeError(
                f"{float(flat[-1]):g} parts were added up where {self.world} ranks add theirs: the release may "
                "lack its noise. Do not use it; is the process group shared with other work?"
            )
        return flat[:-1]


def _attempt(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return make(), None
    except Exception as error:
        return None, error


@contextlib.contextmanager
def explain_silence() -> Iterator[None]:
    """Explain what a broken process group means for the run."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            "Another rank ended or did not answer within the process group's timeout. This run ends here; the ledger "
            "already counts the step it was in, released or not. Resume all ranks from the last checkpoint."
        ) from error

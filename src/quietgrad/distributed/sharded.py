"""The reducer of a model under `fully_shard`: every rank holds some rows of each parameter, sum and release.

    x̃[rows] = γ·(Σ_r round(Σ_{i on rank r} clip(g_i)/γ)[rows] + z[rows])/qN      a reduce-scatter of integers per block

Formal guarantee: the ranks' parts of a draw are disjoint and each is a whole number of steps of the release's grid, as
in `AllReduce`. Each row of the sum ends on one rank, which adds the noise of its rows from its own OS entropy, so every
coordinate has the noise once, and no two coordinates share a draw. What all ranks hold together is bit for bit the
release that one process would make of the same parts as micro-batches, given the same noise.
Checked by: tests/distributed/test_sharded.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from quietgrad._gradients.space import rows_of_shard
from quietgrad.distributed.all_reduce import AllReduce, explain_silence

AT_ONCE = 1 << 20
"""Numbers of all ranks that are sent at a time: integers of a whole block would be twice as large as the block."""


class Sharded(AllReduce):
    """All ranks of a process group train one model, of which each holds a shard.

    For models under `torch.distributed.fsdp.fully_shard`. Every rank takes its part of one draw, and runs as many
    forwards and backwards as the others: `batch.split` hands out stand-in rows where a rank has none left, and nothing
    of them is added.

    Args:
        group: of the ranks that hold the shards; the default group if left out.
        timeout: seconds after which a rank that does not answer ends the others; the group's own if left out.
        records: "shared" or "local", as in `AllReduce`.

    Example:
        fully_shard(model)  # under torchrun, after init_process_group
        private = qg.Privatizer(model, mechanism, batches, reducer=qg.distributed.Sharded())
    """

    lockstep = True

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        timeout: float | None = None,
        records: Literal["shared", "local"] = "shared",
    ) -> None:
        super().__init__(group, timeout=timeout, records=records)

    def scatter_sum(self, number: int, block: Tensor) -> Tensor:
        """Return this rank's rows of Σ over ranks of a block.

        Raises:
            RuntimeError: the ranks did not all add their part of this block.
        """
        mine = rows_of_shard(len(block), self.rank, self.world)
        each, width = -(-len(block) // self.world), block.shape[1:].numel()
        total = block.new_empty(mine.stop - mine.start, *block.shape[1:])
        some = max(1, AT_ONCE // max(1, width * self.world))
        for start in range(0, each, some):
            rows = min(some, each - start)
            sent = block.new_zeros(self.world, rows * width + 2)
            for rank in range(self.world):
                piece = block[rank * each : (rank + 1) * each][start : start + rows]
                sent[rank, : piece.numel()] = piece.reshape(-1)
            # Behind the data: how many parts were added, and of which block.
            sent[:, -2], sent[:, -1] = 1, number + 1
            got = self._reduce_scatter(sent)
            kept = max(0, min(rows, len(total) - start))
            total[start : start + kept] = got[: kept * width].view(kept, *block.shape[1:])
        return total

    def _reduce_scatter(self, sent: Tensor) -> Tensor:
        """Return this rank's row of Σ over ranks."""
        reduce_scatter: Callable[..., Any] = getattr(
            dist, "reduce_scatter_single", dist.reduce_scatter_tensor
        )
        number = float(sent[0, -1])
        got = sent.new_empty(sent.shape[1:], device=self._device)
        self.bytes_reduced += sent.nbytes
        with explain_silence():
            reduce_scatter(got, sent.to(self._device).view(-1), group=self._group)
        if float(got[-2]) != self.world or float(got[-1]) != self.world * number:
            raise RuntimeError(
                "The ranks did not add up the same block: the sum is useless. Is the process group shared with other "
                "work, or does a rank run another model?"
            )
        return got[:-2].to(sent.device)

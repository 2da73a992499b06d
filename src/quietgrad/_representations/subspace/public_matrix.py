"""The matrix G of m public gradients: kept if it is small, made again for each pass if it is not."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from quietgrad._gradients.blocks import BlockGrads, DenseGrad
from quietgrad._gradients.row_arithmetic import zero_rows
from quietgrad._gradients.stages import BlockwiseGrads, PerSampleGrads
from quietgrad._representations.base import Public, PublicLosses
from quietgrad._representations.public_gradients import stream_gradients
from quietgrad._representations.subspace.basis import projectable
from quietgrad._representations.subspace.projections import kept_bytes

KEPT_BYTES = 2**29
"""Public gradients up to this size are kept between passes; 2000 gradients of a ResNet20 (2.1 GB) are streamed."""


class PublicMatrix:
    """The public gradients of one step in chunks of rows; every pass sees the same numbers.

    Args:
        public: where the gradients come from; random labels are the same in each pass, by the step's public seed.
        losses: `model -> losses[m]`, in one piece or in chunks.
        drop_broken: whether rows that are not finite become zero. To ask for them makes the host wait for a device.
    """

    def __init__(self, public: Public, losses: PublicLosses, *, drop_broken: bool = True) -> None:
        self._public, self._losses, self._drop_broken = public, losses, drop_broken
        self._kept: list[BlockwiseGrads] | None = None
        self._lengths: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self._first_pass()

    @property
    def samples(self) -> int:
        """m."""
        return sum(len(lengths) for lengths in self._lengths)

    @property
    def device(self) -> torch.device:
        """Where the gradients are."""
        return self._lengths[0].device

    def chunks(self) -> Iterator[tuple[slice, BlockwiseGrads]]:
        """(which rows, their gradients)."""
        start = 0
        for chunk in self._again() if self._kept is None else self._kept:
            yield slice(start, start + chunk.samples), chunk
            start += chunk.samples

    def chunk_groups(self) -> Iterator[list[tuple[slice, BlockwiseGrads]]]:
        """All chunks at once if they are kept (a block's sum then stays in the cache from chunk to chunk), else one by
        one."""
        if self._kept is not None:
            yield list(self.chunks())
            return
        for part in self.chunks():
            yield [part]

    def forget(self) -> None:
        """Give up what was kept: no pass will follow."""
        self._kept = []

    def _first_pass(self) -> None:
        """Count the rows, remember their norms, and keep them as long as they are small together."""
        kept: list[BlockwiseGrads] = []
        size = 0
        for raw in stream_gradients(self._public, self._losses):
            if raw.first_inputs is not None:
                self.inputs.append(raw.first_inputs)
            chunk, squared_norms = self._prepare(raw)
            del raw  # its activations; the formed rows are all that is needed
            self._lengths.append(squared_norms)
            size += kept_bytes(chunk.blocks.values())
            kept = [*kept, chunk] if size <= KEPT_BYTES else []
        if self.samples == 0:
            raise ValueError("public_losses gave no losses. Return one loss per public sample, at least one.")
        self._kept = kept if size <= KEPT_BYTES else None

    def _prepare(self, raw: PerSampleGrads) -> tuple[BlockwiseGrads, Float64[Tensor, " n"]]:
        chunk = projectable(raw)
        return _finite_rows(chunk) if self._drop_broken else (chunk, chunk.squared_norms())

    def _again(self) -> Iterator[BlockwiseGrads]:
        for index, raw in enumerate(stream_gradients(self._public, self._losses)):
            chunk, squared_norms = self._prepare(raw)
            self._check_same(index, squared_norms)
            yield chunk

    def _check_same(self, index: int, squared_norms: Float64[Tensor, " n"]) -> None:
        known = index < len(self._lengths) and len(self._lengths[index]) == len(squared_norms)
        if not known or not torch.allclose(self._lengths[index], squared_norms, rtol=1e-3):
            raise ValueError(
                "public_losses gave other gradients when asked again within a step. Draw random labels with torch's "
                "global generator (it is seeded for the step), or return fewer public samples so that they are kept."
            )


def _finite_rows(grads: BlockwiseGrads) -> tuple[BlockwiseGrads, Float64[Tensor, " n"]]:
    """The gradients with non-finite rows made zero, and their squared norms."""
    squared_norms = grads.squared_norms()
    broken = ~squared_norms.isfinite()
    if not bool(broken.any()):
        return grads, squared_norms
    blocks: dict[str, BlockGrads] = {
        name: DenseGrad(zero_rows(block.dense(), broken)) for name, block in grads.blocks.items()
    }
    return BlockwiseGrads(blocks, grads.samples), squared_norms.masked_fill(broken, 0.0)

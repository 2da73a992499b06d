"""One step in progress: its codecs, the sums of its micro-batches, what it releases of them, and `p.grad` for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from quietgrad._capture.fsdp import shard_like
from quietgrad._collective import Reducer, SingleProcess
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.grid import Grid
from quietgrad._gradients.space import Space, coordinates
from quietgrad._gradients.stages import (
    BlockwiseGrads,
    ClippedSum,
    PerSampleGrads,
    Released,
    ScatteredGrads,
)
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.gaussian import widen_noise
from quietgrad._noise.sources import NoiseSource
from quietgrad._release.releaser import AccountedDraw
from quietgrad._representations.base import Codec, Public


class Step:
    """Everything between two releases.

    `add` each micro-batch, then `release` once, then `decode`.

    Representations are refreshed when it begins, before any private gradient is there.

    Args:
        mechanism: says which releases there are.
        public: what representations may look at.
        source: of the noise; sums of micro-batches are added on the grid that it draws on.
        reducer: adds up the sums of a sharded model, block by block.

    Example:
        step = private.begin_step()
        step.add(grads)
    """

    def __init__(
        self, mechanism: Mechanism, public: Public, source: NoiseSource, reducer: Reducer | None = None
    ) -> None:
        self.mechanism, self.public, self._source = mechanism, public, source
        self._reducer = reducer or SingleProcess()
        self._sums: list[ClippedSum] = []
        for index, release in enumerate(mechanism.releases):
            release.clip.validate(self.codec(index).space)

    def codec(self, index: int) -> Codec:
        """Of a release, made once and the same for all micro-batches."""
        return self.public.codec(self.mechanism.releases[index].representation)

    def add(self, grads: PerSampleGrads) -> None:
        """Encode, clip and sum a micro-batch for every release."""
        self._add([self.encoded_sum(index, grads) for index in range(len(self.mechanism.releases))])

    def add_encoded(self, encoded: Sequence[PerSampleGrads]) -> None:
        """Clip and sum rows that were encoded elsewhere, those of each release."""
        self._add([self._clip(index, rows) for index, rows in enumerate(encoded)])

    def _add(self, sums: list[ClippedSum]) -> None:
        # The first micro-batch needs no zeros to be added to: a pass over all parameters less.
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)] if self._sums else sums

    def clear(self) -> None:
        """Drop what was added: the loop was left, and its draw is handed out again."""
        self._sums = []

    @property
    def sums(self) -> list[ClippedSum]:
        """Σ_i clip(encode(g_i)) of each release over what was added; zeros before that. Private."""
        return self._sums or [self.zero_sum(index) for index in range(len(self.mechanism.releases))]

    def encoded_sum(self, index: int, grads: PerSampleGrads) -> ClippedSum:
        """Return what these samples would add to a release."""
        if grads.samples == 0:
            return self.zero_sum(index)
        return self._clip(index, self.codec(index).encode(grads))

    def _clip(self, index: int, encoded: PerSampleGrads) -> ClippedSum:
        space, clip = self.codec(index).space, self.mechanism.releases[index].clip
        if space.is_sharded:
            assert isinstance(encoded, BlockwiseGrads), "only gradients as they are have shards"
            grid = self._grid(index, clip.sensitivity(self.public.step), coordinates(space))
            encoded = ScatteredGrads(encoded, space, grid, self._reducer.scatter_sum)
        return self._on_grid(index, clip(encoded, self.public.step))

    def zero_sum(self, index: int) -> ClippedSum:
        """Return what an empty batch adds to a release."""
        space = self.codec(index).space
        sensitivity = self.mechanism.releases[index].clip.sensitivity(self.public.step)
        # In float64 as other sums are: a rank without records sends as many bytes as the others.
        total = ClippedSum(blocks=space.zeros(torch.float64), sensitivity=sensitivity, space=space)
        return self._on_grid(index, total)

    def _on_grid(self, index: int, total: ClippedSum) -> ClippedSum:
        """With the grid of its noise: micro-batches are added in whole steps, whose order does not matter."""
        return replace(total, grid=self._grid(index, total.sensitivity, total.coordinates))

    def _grid(self, index: int, sensitivity: float, coordinates: int) -> Grid | None:
        std = self.mechanism.std(self.mechanism.releases[index], self.public.step)
        if std == 0.0:
            return None
        # The very grid of the release: rounding to it costs nothing twice.
        steps = self.mechanism.noise.grid_steps(self._source) * self._reducer.noise_over_draw
        return widen_noise(std=std, sensitivity=sensitivity, coordinates=coordinates, steps=steps).grid

    def release(self, draw: AccountedDraw) -> list[Released]:
        """Add noise to the sum of each release; the draw is in the ledger.

        Raises:
            RuntimeError: the noise is not what the ledger accounts for (law 0).
        """
        return [
            draw.release(total, std=self.mechanism.std(release, self.public.step))
            for release, total in zip(self.mechanism.releases, self.sums, strict=True)
        ]

    def decode(self, released: list[Released]) -> Blocks:
        """Return the gradient made of all releases, Σ_j decode_j; representations learn from them on the way."""
        total: Blocks = {}
        for index, part in enumerate(released):
            self.public.observe(self.mechanism.releases[index].representation, part)
            for name, block in (self.codec(index).decode(part) or {}).items():
                total[name] = total[name] + block if name in total else block
        return total


def drop_grads(space: Space) -> None:
    """Set every `p.grad` to None: the next release will overwrite it, and the backward needs the memory."""
    for name in space:
        space.local(name).grad = None


def write_grads(space: Space, update: Blocks) -> None:
    """Overwrite every `p.grad` with its block; zero where there is none."""
    for name in space:
        parameter, block, part = space.local(name), update.get(name), space.part(name)
        if block is None:
            parameter.grad = torch.zeros_like(parameter)
            continue
        if part.rows is None:
            parameter.grad = block.to(parameter.dtype)
            continue
        # A codec decodes to whole blocks; a sum that was scattered is this rank's rows already.
        own = block if block.shape == part.local_shape else block[part.rows]
        parameter.grad = shard_like(parameter, own.to(parameter.dtype))

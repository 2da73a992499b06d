"""One step in progress: its codecs, the sums of its micro-batches, what it releases of them, and `p.grad` for it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from quietgrad.collective import Reducer
from quietgrad.gradients.blocks import Blocks
from quietgrad.gradients.stages import ClippedSum, PerSampleGrads, Released
from quietgrad.mechanism.mechanism import Mechanism
from quietgrad.noise.base import NoiseDraw
from quietgrad.noise.gaussian import widened
from quietgrad.noise.sources import NoiseSource
from quietgrad.representations.base import Codec
from quietgrad.representations.public import Public


class Step:
    """Everything between two releases: `add` each micro-batch, then `release` once, then `decode`.

    Representations are refreshed when it begins, before any private gradient is there.

    Args:
        mechanism: says which releases there are.
        public: what representations may look at.
        source: of the noise; sums of micro-batches are added on the grid that it draws on.

    Example:
        step = private.current
        step.add(grads)
    """

    def __init__(self, mechanism: Mechanism, public: Public, source: NoiseSource) -> None:
        self.mechanism, self.public, self._source = mechanism, public, source
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
        self._add([self._clipped(index, rows) for index, rows in enumerate(encoded)])

    def _add(self, sums: list[ClippedSum]) -> None:
        # The first micro-batch needs no zeros to be added to: a pass over all parameters less.
        self._sums = [a + b for a, b in zip(self._sums, sums, strict=True)] if self._sums else sums

    @property
    def sums(self) -> list[ClippedSum]:
        """Σ_i clip(encode(g_i)) of each release over what was added; zeros before that. Private."""
        return self._sums or [self.zero_sum(index) for index in range(len(self.mechanism.releases))]

    def encoded_sum(self, index: int, grads: PerSampleGrads) -> ClippedSum:
        """What these samples would add to a release."""
        if grads.samples == 0:
            return self.zero_sum(index)
        return self._clipped(index, self.codec(index).encode(grads))

    def _clipped(self, index: int, encoded: PerSampleGrads) -> ClippedSum:
        return self._on_grid(index, self.mechanism.releases[index].clip(encoded, self.public.step))

    def zero_sum(self, index: int) -> ClippedSum:
        """What an empty batch adds to a release."""
        like = next(iter(self.public.parameters.values()))
        space = self.codec(index).space
        # In float64 as other sums are: a rank without records sends as many bytes as the others.
        blocks = {name: like.new_zeros(shape, dtype=torch.float64) for name, shape in space.items()}
        sensitivity = self.mechanism.releases[index].clip.sensitivity(self.public.step)
        total = ClippedSum(blocks=blocks, sensitivity=sensitivity, dtypes=dict.fromkeys(space, like.dtype))
        return self._on_grid(index, total)

    def _on_grid(self, index: int, total: ClippedSum) -> ClippedSum:
        """With the grid of its noise: micro-batches are added in whole steps, whose order does not matter."""
        std = self.mechanism.std(self.mechanism.releases[index], self.public.step)
        if std == 0.0:
            return total
        wide = widened(
            std=std, sensitivity=total.sensitivity, coordinates=total.coordinates, steps=self._source.std
        )
        return replace(total, grid=wide.grid)

    def release(self, *, reducer: Reducer, divisor: float) -> list[Released]:
        """(sum + noise)/divisor of each release. To be called once: every call draws noise anew.

        Raises:
            RuntimeError: the noise is not what the ledger was told (law 0).
        """
        released = []
        for release, total in zip(self.mechanism.releases, self.sums, strict=True):
            std = self.mechanism.std(release, self.public.step)
            draw = NoiseDraw(
                std=std, divisor=divisor, source=self._source, reducer=reducer, step=self.public.step
            )
            released.append(self.mechanism.noise.release(total, draw))
        self.check_conservation(released)
        return released

    def check_conservation(self, released: list[Released]) -> None:
        """Law 0: Σ (S/s)² of what was released is what the ledger was told.

        Raises:
            RuntimeError: it is not.
        """
        precision = sum(part.precision for part in released)
        multiplier = self.mechanism.multiplier(self.public.step)
        told = multiplier**-2 if multiplier > 0 else math.inf
        if not math.isclose(precision, told, rel_tol=1e-9):
            raise RuntimeError(
                f"Released precision {precision} differs from the accounted {told}: this is a bug."
            )

    def decode(self, released: list[Released]) -> Blocks:
        """The gradient made of all releases, Σ_j decode_j; representations learn from them on the way."""
        total: Blocks = {}
        for index, part in enumerate(released):
            self.public.observe(self.mechanism.releases[index].representation, part)
            for name, block in (self.codec(index).decode(part) or {}).items():
                total[name] = total[name] + block if name in total else block
        return total


def drop_grads(parameters: Mapping[str, nn.Parameter]) -> None:
    """As zero_grad() does: the next release will overwrite them, and the backward needs the memory."""
    for parameter in parameters.values():
        parameter.grad = None


def write_grads(parameters: Mapping[str, nn.Parameter], update: Blocks) -> None:
    """Overwrite every `p.grad` with its block; zero where there is none."""
    for name, parameter in parameters.items():
        block = update.get(name)
        parameter.grad = torch.zeros_like(parameter) if block is None else block.to(parameter.dtype)

"""The public view: all that representations and post-processing may look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quietgrad.gradients.blocks import Space
from quietgrad.gradients.stages import PerSampleGrads, Released
from quietgrad.schedules import epoch_of

if TYPE_CHECKING:
    from quietgrad.representations.base import Codec, Representation
    from quietgrad.representations.states import Codecs

PublicLosses = Callable[[nn.Module], Tensor | Iterator[Tensor]]
"""`model -> losses[m]` on non-sensitive data; may yield chunks so that many public samples fit in memory."""


@dataclass(frozen=True, kw_only=True)
class Public:
    """All that a representation or a post-processing may look at: it holds no way to the private batch.

    Args:
        parameters: the current values of the trainable parameters (functions of past releases), in float32 at
            least.
        space: the blocks in which gradients arrive at this representation.
        step, steps, rate: where in the plan this step is.
        seed: public randomness of this step, the same on every rank.
        collect: the engine's per-sample gradients of public losses under a seed, in chunks.
        codecs: this step's codecs, refreshed once and shared.
        place: the representations that this view is inside of, the first applied first.
        encoders: their codecs.
        since: the step from which on `space` means what it means now; after a new mask, older bases are stale.

    Example:
        codec = public.codec(subspace)  # another representation's, of this step
        view = public.inside(mask)  # the same step, seen inside a mask
    """

    parameters: Mapping[str, Tensor]
    space: Space
    step: int
    steps: int
    rate: float
    seed: int
    collect: Callable[[PublicLosses, int], Iterator[PerSampleGrads]]
    codecs: Codecs
    place: tuple[Representation, ...] = ()
    encoders: tuple[Codec, ...] = ()
    since: int = 0

    @property
    def epoch(self) -> int:
        """Completed passes over the data in expectation."""
        return epoch_of(self.step, self.rate)

    def generator(self, salt: int = 0) -> torch.Generator:
        """A fresh public generator of this step; different salts give independent streams."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + salt) % 2**63)

    def gradients(self, public_losses: PublicLosses) -> Iterator[PerSampleGrads]:
        """Per-sample gradients of public losses, in `space`, in chunks; the same whenever asked within a step."""
        chunks = self.collect(public_losses, self.seed)
        for codec in self.encoders:
            chunks = map(codec.encode, chunks)
        return chunks

    def codec(self, representation: Representation) -> Codec:
        """This step's codec of a representation of the same space, refreshed once and shared."""
        return self.codecs.codec(representation, self)

    def observe(self, representation: Representation, released: Released) -> None:
        """Tell a representation of the same space what was released."""
        self.codecs.observe(representation, self, released)

    def inside(self, representation: Representation) -> Public:
        """The view inside another representation: its encoded space, public gradients encoded too."""
        codec = self.codec(representation)
        return replace(
            self,
            space=codec.space,
            place=(*self.place, representation),
            encoders=(*self.encoders, codec),
            since=max(self.since, codec.since),
        )
